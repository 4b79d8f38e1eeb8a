"""Values of the followed keys. Names and fields are the public contract, versioned by ``"v": 1``.

Records are read and written by :mod:`pdcore.topology.codec` only. ``extra`` keeps fields of newer versions, so that
a record survives being read and written back by an older process. Most are tuples, which are made and compared faster
than anything else, and a router does both with every event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

VERSION: Final = 1
DP_RANK_CHOICE: Final = "dp_rank_choice"
"""An instance's extra field: ``engine`` when it chooses the DP rank of a leg that names none."""
ROOM_DIRECTORY: Final = "room_directory"
"""The field beside it: where it says what it chose, ``store`` or ``redis``."""
SEAT: Final = "seat"
"""An instance's extra field: the number of its seat, which whoever comes in its place takes over."""
_HIGHEST_SEAT: Final = (1 << 31) - 1

Role = Literal["prefill", "decode", "unified"]
State = Literal["starting", "serving", "draining"]
DepartureReason = Literal["left", "died", "silent", "drained", "ordered"]
OrderKind = Literal["drain", "undrain", "end"]
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

NOTHING: Final[Mapping[str, Json]] = MappingProxyType({})


def _nothing() -> Mapping[str, Json]:
    """A field's default; a mapping proxy itself may not be one before Python 3.12."""
    return NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Compat:
    """Everything a prefill and a decode instance must agree on (see :mod:`pdcore.topology.compat`).

    ``model_fingerprint`` hashes config without paths, dtype and tokenizer. ``wire`` and ``layout`` change only when
    the bytes of the handshake or of a KV block do, never with a package version.
    """

    model_fingerprint: str
    context_length: int
    kv_dtype: str
    block_sizes: tuple[int, ...]
    kv_layout: str
    attention: str
    layers: int
    kv_heads: int
    head_dim: int
    transfer_engines: tuple[str, ...]
    wire: int
    layout: int
    extra: Mapping[str, Json] = field(default_factory=_nothing)


class InstanceRecord(NamedTuple):
    """``instances/{instance_id}``. ``url`` is where its leader answers; bootstrap fields only for prefill."""

    incarnation: str
    role: Role
    group: str
    generation: int
    models: tuple[str, ...]
    url: str
    bootstrap_host: str | None
    bootstrap_port: int | None
    protocol: str
    dp_size: int
    cp_size: int
    tp_size: int
    pp_size: int
    compat: Compat
    kv_tokens: int
    block_size: int
    machine: str
    boot_id: str
    pid: int
    state: State
    extra: Mapping[str, Json] = NOTHING

    @property
    def world_size(self) -> int:
        """How many rank keys a complete instance has."""
        return self.dp_size * self.cp_size * self.tp_size

    @property
    def chooses_dp_rank(self) -> bool:
        """Whether a leg that names no DP rank gets one here, to be looked up in the room directory."""
        return self.extra.get(DP_RANK_CHOICE) == "engine"

    @property
    def seat(self) -> int | None:
        """Its place among the instances of its group and role, from 0; None for one that has none or says nonsense."""
        seat = self.extra.get(SEAT)
        return seat if type(seat) is int and 0 <= seat <= _HIGHEST_SEAT else None


class RankRecord(NamedTuple):
    """``ranks/{instance_id}/{dp}.{cp}.{tp}``. ``transfer`` belongs to the transfer engine and is opaque here.

    ``rank_port`` is where peers send handshakes; null for a rank that nobody connects to (decode, unified).
    """

    incarnation: str
    rank_ip: str
    rank_port: int | None
    transfer: Mapping[str, Json]
    device: str
    machine: str
    extra: Mapping[str, Json] = NOTHING


class DepartureRecord(NamedTuple):
    """``departures/{instance_id}``: why an incarnation's keys went, written in the transaction that deletes them."""

    incarnation: str
    reason: DepartureReason
    by: str
    extra: Mapping[str, Json] = NOTHING


class RouterRecord(NamedTuple):
    """``routers/{router_id}``."""

    url: str
    admin_url: str
    version: str
    extra: Mapping[str, Json] = NOTHING


class DesiredRecord(NamedTuple):
    """``groups/{group}/desired``: which generation takes traffic, and which one tries to."""

    active: int
    candidate: int | None
    deadline: str | None
    replicas: Mapping[str, int]
    extra: Mapping[str, Json] = NOTHING


class OrderRecord(NamedTuple):
    """``orders/{instance_id}``. Binds one incarnation unless ``sticky``; ``end`` always names one."""

    kind: OrderKind
    incarnation: str | None
    sticky: bool
    by: str
    extra: Mapping[str, Json] = NOTHING


class StoreIdRecord(NamedTuple):
    """``store_id``: a random id created once per store; another one means another store."""

    store_id: str


class DocumentRecord(NamedTuple):
    """``groups/{group}/spec`` and ``…/generations/{g}``: kept whole, read by :mod:`pdcore.group`."""

    document: Mapping[str, Json]


Record = (
    InstanceRecord
    | RankRecord
    | DepartureRecord
    | RouterRecord
    | DesiredRecord
    | OrderRecord
    | DocumentRecord
    | StoreIdRecord
)
