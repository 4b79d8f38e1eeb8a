"""What the catalogue's file may say: its shape as types. Pure.

Texts may hold placeholders (:mod:`.placeholders`). What a field must be beside its type is checked in :mod:`.self_checks`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

from pdcore.group.spec import Backend, ModeName, RouterProtocol, Vendor

NATIVE: Final[ModeName] = "pdcore"
CUSTOM: Final[ModeName] = "custom"
EngineRole = Literal["prefill", "decode"]

Width = Literal["one", "data_parallel", "accelerators"]
Channel = Literal["env", "args", "files"]
Plane = Literal["data", "control"]
TpDirection = Literal["any", "decode_at_least_prefill", "prefill_at_least_decode", "one_divides_other"]
Membership = Literal["keyspace", "dynamic", "restart", "manual"]
LeasePlace = Literal["env", "extra_config", "none"]


class _Described(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything here refuses keys that it does not know."""


class Band(_Described, frozen=True, kw_only=True):
    """Contiguous ports of a member. ``channel`` is where the engine learns of them, ``width`` how many there are."""

    name: str
    width: Width
    channel: Channel


class HostFile(_Described, frozen=True, kw_only=True):
    """A file that the engine reads. With ``content`` it is written before the start, as JSON, else the machine has to have it."""

    path: str
    why: str
    content: dict[str, Any] | None = None


class RoleRecipe(_Described, frozen=True, kw_only=True):
    """What a mode adds to one role. ``descriptor`` becomes the value of ``--kv-transfer-config``."""

    bands: tuple[Band, ...] = ()
    env: dict[str, str] = {}
    args: tuple[str, ...] = ()
    descriptor: dict[str, Any] | None = None
    files: tuple[HostFile, ...] = ()


class Tunable(_Described, frozen=True, kw_only=True):
    """A flag of the router that a person may set. ``choices`` are advice; ``least`` bounds a whole number."""

    flag: str
    choices: tuple[str, ...] = ()
    least: int | None = None


class Call(_Described, frozen=True, kw_only=True):
    """One call of the router's membership interface."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    body: dict[str, str] = {}


class MembershipApi(_Described, frozen=True, kw_only=True):
    """How members of a running router are read, added and removed; ``required_args`` are flags it needs for that."""

    probe: Call
    add: Call | None = None
    remove: Call | None = None
    required_args: tuple[str, ...] = ()


class RouterRecipe(_Described, frozen=True, kw_only=True):
    """The managed router of a mode.

    ``peers`` are the words per member of a role. ``owned_args`` may not be set by a person: they would append to what is
    rendered, or break how the router is found.
    """

    entrypoint: tuple[str, ...]
    connection_args: tuple[str, ...]
    args: tuple[str, ...] = ()
    peers: dict[EngineRole, tuple[str, ...]] = {}
    bands: tuple[Band, ...] = ()
    owned_args: tuple[str, ...] = ()
    tunable_args: tuple[Tunable, ...] = ()
    membership: MembershipApi | None = None
    health: str = "/health"


class BackendRecipe(_Described, frozen=True, kw_only=True):
    """How an engine is started, before any mode; ``served_at`` its HTTP port: assigned, or its own choice."""

    command: tuple[str, ...] = ()
    served_at: Literal["assigned", "advertised"] = "assigned"
    tp_flag: str | None = None


class Lease(_Described, frozen=True, kw_only=True):
    """How long a prefill keeps KV that nobody fetched; ``None`` as platform default leaves the engine's own."""

    parameter: str | None = None
    where: LeasePlace = "none"
    engine_default_s: int | None = None
    platform_default_s: int | None = None
    expired_metric: str | None = None


class TransferMetrics(_Described, frozen=True, kw_only=True):
    """Whose counters say how many transfers there were, and which; without ``transfers`` there are none to read."""

    counted_role: EngineRole
    transfers: str | None = None
    note: str = ""


class TpRule(_Described, frozen=True, kw_only=True):
    """Which tensor parallel sizes may meet, for engines in ``versions`` (``>=X``); without it, for all others."""

    direction: TpDirection
    versions: str | None = None
    why: str = ""


class Capabilities(_Described, frozen=True, kw_only=True):
    """What may differ between siblings: only what people are told."""

    kv_expired_metric: str | None = None
    notes: tuple[str, ...] = ()


class Mode(_Described, frozen=True, kw_only=True):
    """One recipe. ``vendors`` are the accelerators it is for; ``lease`` names an entry of the leases."""

    name: ModeName
    title: str
    backends: tuple[Backend, ...]
    vendors: tuple[Vendor, ...] = ()
    preferred: bool = False
    transport: str | None = None
    engine_versions: str | None = None
    protocol: Literal["two_hop", "same_dispatch", "user_provided"]
    tp_rules: tuple[TpRule, ...]
    nic_plane: Plane | None = None
    lease: str | None = None
    membership: Membership
    router: str | None = None
    router_protocol: RouterProtocol | None = None
    capabilities: Capabilities = Capabilities()
    roles: dict[EngineRole, RoleRecipe] = {}

    @property
    def injects(self) -> bool:
        """Whether it adds anything to the engines' own command lines."""
        return bool(self.roles)

    @property
    def takes_load_failure_policy(self) -> bool:
        """Whether its connector knows ``kv_load_failure_policy``."""
        return any("kv_load_failure_policy" in (role.descriptor or ()) for role in self.roles.values())

    def bands_of(self, role: EngineRole) -> tuple[Band, ...]:
        """The port bands of one member of ``role``."""
        return self.roles[role].bands if role in self.roles else ()


class Siblings(_Described, frozen=True, kw_only=True):
    """Modes whose routers may not drift apart, and the fields in which they may."""

    modes: tuple[ModeName, ModeName]
    may_differ: tuple[str, ...] = ()


class Catalogue(_Described, frozen=True, kw_only=True):
    """Every mode, and what modes share."""

    backends: dict[Backend, BackendRecipe]
    leases: dict[str, Lease]
    transfer_metrics: dict[str, TransferMetrics]
    routers: dict[str, RouterRecipe]
    siblings: tuple[Siblings, ...] = ()
    modes: tuple[Mode, ...]

    def mode(self, name: str) -> Mode:
        """The mode of that name; KeyError when there is none."""
        for one in self.modes:
            if one.name == name:
                return one
        raise KeyError(name)

    def router_of(self, mode: Mode) -> RouterRecipe | None:
        """The managed router of ``mode``; None where people bring their own."""
        return None if mode.router is None else self.routers[mode.router]

    def lease_of(self, mode: Mode) -> Lease | None:
        """How long its prefills keep KV; None where nobody knows."""
        return None if mode.lease is None else self.leases[mode.lease]

    def metrics_of(self, mode: Mode) -> TransferMetrics | None:
        """Where its transfers are counted; None where nobody knows."""
        return None if mode.lease is None else self.transfer_metrics[mode.lease]
