"""Settings of a router."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.config.policies import PolicyNames, policy_names
from pdcore.config.process import COMMON, LISTEN
from pdcore.config.router_security import SECURITY, SecurityConfig
from pdcore.config.setting import Setting, integer, name, one_of, path, seconds
from pdcore.config.targets import Target, targets

ROUTER: Final = (
    *COMMON,
    *LISTEN,
    *SECURITY,
    Setting(
        name="port",
        help="HTTP port; 0 picks a free one.",
        parse=integer(0, 65535),
        default="8000",
        metavar="PORT",
    ),
    Setting(
        name="router_id", help="Stable name of this router; router-{host}-{port} unless given.", parse=name
    ),
    Setting(
        name="lease_ttl_s",
        help="TTL of the registration lease.",
        parse=integer(5, 60),
        default="10",
        metavar="SECONDS",
    ),
    Setting(
        name="prefill",
        help="Prefill engines of a router without a store: URL[,bootstrap=PORT] or HOST[:PORT], several by blanks.",
        parse=targets("prefill"),
        metavar="ENGINE...",
        many=True,
        other_flags=("--prefill-addrs",),
    ),
    Setting(
        name="decode",
        help="Its decode engines: URL or HOST[:PORT], several by blanks.",
        parse=targets("decode"),
        metavar="ENGINE...",
        many=True,
        other_flags=("--decode-addrs",),
    ),
    Setting(
        name="unified",
        help="Its engines that compute both phases: URL or HOST[:PORT], several by blanks.",
        parse=targets("unified"),
        metavar="ENGINE...",
        many=True,
    ),
    Setting(
        name="protocol",
        help="The handshake that those engines speak: bootstrap, nixl, mooncake or ascend-layerwise.",
        parse=one_of("bootstrap", "nixl", "mooncake", "ascend-layerwise"),
        default="bootstrap",
        metavar="NAME",
    ),
    Setting(
        name="policy",
        help="How instances are picked: a policy's name for all models, MODEL=NAME for one, several by commas.",
        parse=policy_names,
        metavar="POLICY",
    ),
    Setting(
        name="prefill_policy",
        help="The same for prefill and unified instances; prefix_affinity unless given.",
        parse=policy_names,
        metavar="POLICY",
    ),
    Setting(
        name="decode_policy",
        help="The same for decode instances; round_robin unless given.",
        parse=policy_names,
        metavar="POLICY",
    ),
    Setting(
        name="unified_below_tokens",
        help="Prompts of fewer tokens (of text: of four bytes each) go to a unified instance where there is one.",
        parse=integer(0, 1 << 30),
        default="0",
        metavar="TOKENS",
    ),
    Setting(
        name="metaserver_port",
        help="Port of the private listener that ascend-layerwise decodes call; 0 picks a free one.",
        parse=integer(0, 65535),
        default="0",
        metavar="PORT",
    ),
    Setting(
        name="view_cache",
        help="File that keeps the last view for a start while the store is away; none unless given.",
        parse=path,
        metavar="FILE",
    ),
    Setting(
        name="connect_timeout_s",
        help="Budget of one connection to an engine.",
        parse=seconds(0.05, 60),
        default="2",
        metavar="SECONDS",
    ),
    Setting(
        name="first_byte_timeout_s",
        help="Budget until an engine's response head.",
        parse=seconds(0.1, 86400),
        default="600",
        metavar="SECONDS",
    ),
    Setting(
        name="idle_timeout_s",
        help="Longest silence between two chunks of an answer.",
        parse=seconds(0.1, 86400),
        default="120",
        metavar="SECONDS",
    ),
    Setting(
        name="frozen_after_s",
        help="How long an instance may answer nothing, not even for its health, before its requests are failed.",
        parse=seconds(1, 3600),
        default="15",
        metavar="SECONDS",
    ),
    Setting(
        name="max_attempts",
        help="Most pairs tried for one request; another one only while no engine has taken it, or once if it died.",
        parse=integer(1, 16),
        default="3",
        metavar="N",
    ),
    Setting(
        name="max_in_flight",
        help="Most requests at once before the router answers 429.",
        parse=integer(1, 1 << 20),
        default="4096",
        metavar="N",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(SecurityConfig):
    """One router; the flags' help says what each field means."""

    port: int
    router_id: str | None
    lease_ttl_s: int
    prefill: tuple[Target, ...] | None = None
    decode: tuple[Target, ...] | None = None
    unified: tuple[Target, ...] | None = None
    protocol: str = "bootstrap"
    policy: PolicyNames | None = None
    prefill_policy: PolicyNames | None = None
    decode_policy: PolicyNames | None = None
    unified_below_tokens: int = 0
    metaserver_port: int = 0
    view_cache: Path | None
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    frozen_after_s: float
    max_attempts: int
    max_in_flight: int

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every engine that was named; with one of them the router is static and uses no store."""
        return (*(self.prefill or ()), *(self.decode or ()), *(self.unified or ()))
