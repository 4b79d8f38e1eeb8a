"""Settings of a router."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.config.process import COMMON, LISTEN, ListenConfig
from pdcore.config.setting import Setting, integer, name, path, seconds

ROUTER: Final = (
    *COMMON,
    *LISTEN,
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
        help="Most pairs tried for one request; another one only while no engine has taken it.",
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
class RouterConfig(ListenConfig):
    """One router; the flags' help says what each field means."""

    port: int
    router_id: str | None
    lease_ttl_s: int
    view_cache: Path | None
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    frozen_after_s: float
    max_attempts: int
    max_in_flight: int
