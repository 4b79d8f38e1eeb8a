"""What callers of the bootstrap protocol send: bodies parsed and refused. Pure.

Everything is bounded, and nothing of a size that a body names is ever allocated. Unknown fields are ignored.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdcore.errors import PdcoreError
from pdcore.registry.rooms.names import HIGHEST_DP_RANK, HIGHEST_ROOM
from pdcore.topology import fields
from pdcore.topology.codec import MAX_SIZE, MAX_WORLD_SIZE
from pdcore.topology.fields import Check
from pdcore.topology.keys import RankPosition

MOST_QUERIED: Final = 10_000
MOST_BLOCK_SIZES: Final = 16
LARGEST_BLOCK: Final = 1 << 16
DEFAULT_BLOCK_SIZE: Final = 1
DEFAULT_DTYPE: Final = "bfloat16"

Body = Mapping[str, object]
_size: Final = fields.whole(1, MAX_SIZE)
_block_size: Final = fields.whole(1, LARGEST_BLOCK)
_block_sizes: Final = fields.many(_block_size, 1, MOST_BLOCK_SIZES)
_dtype: Final = fields.text(128)
_tokens: Final = fields.whole(1, (1 << 31) - 1)
_room: Final = fields.whole(1, HIGHEST_ROOM)
_dp_rank: Final = fields.whole(0, HIGHEST_DP_RANK)


class Wrong(PdcoreError):
    """The call cannot be meant so (400). ``field`` is what is wrong in it, None for the body as a whole."""

    def __init__(self, field: str | None, sentence: str) -> None:
        super().__init__(sentence if field is None else f"{field}: {sentence}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank listens."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What every rank of one instance says the same. ``max_prefill_tokens`` None: it did not say."""

    tp_size: int
    cp_size: int
    dp_size: int
    block_sizes: tuple[int, ...]
    kv_cache_dtype: str
    max_prefill_tokens: int | None

    @property
    def world_size(self) -> int:
        return self.tp_size * self.cp_size * self.dp_size


_SHARED_FIELDS: Final[Mapping[str, str]] = {
    "attn_tp_size": "tp_size",
    "attn_cp_size": "cp_size",
    "attn_dp_size": "dp_size",
    "block_sizes": "block_sizes",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_prefill_tokens": "max_prefill_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRegistration:
    """One rank's ``register_rank``."""

    shared: Shared
    position: RankPosition
    address: Address


def decode(raw: bytes) -> object:
    """The JSON in ``raw``."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise Wrong(None, f"the body is not valid JSON: {wrong}") from None
    except RecursionError:
        raise Wrong(None, "the body is nested too deeply") from None


def parse_rank(document: object) -> RankRegistration:
    """The body of ``register_rank``."""
    body = _object(document)
    sizes = {name: _needed(body, f"attn_{name}_size", _size) for name in ("tp", "cp", "dp")}
    shared = Shared(
        tp_size=sizes["tp"],
        cp_size=sizes["cp"],
        dp_size=sizes["dp"],
        block_sizes=_parse_block_sizes(body),
        kv_cache_dtype=_given(body, "kv_cache_dtype", _dtype, DEFAULT_DTYPE),
        max_prefill_tokens=_given(body, "max_prefill_tokens", _tokens, None),
    )
    if shared.world_size > MAX_WORLD_SIZE:
        raise Wrong("attn_dp_size", f"{shared.world_size} ranks are more than {MAX_WORLD_SIZE}")
    _given(body, "pp_size", fields.whole(1, 1), 1)
    position = RankPosition(
        dp=_parse_dp_rank(body, shared.dp_size),
        cp=_needed(body, "attn_cp_rank", fields.whole(0, shared.cp_size - 1)),
        tp=_needed(body, "attn_tp_rank", fields.whole(0, shared.tp_size - 1)),
    )
    address = Address(_needed(body, "rank_ip", _ip), _needed(body, "rank_port", fields.port))
    return RankRegistration(shared=shared, position=position, address=address)


def parse_dp_rank(document: object, dp_size: int | None) -> tuple[int, int]:
    """The body of ``register_dp_rank``: room and DP rank. ``dp_size`` None: not known yet."""
    body = _object(document)
    check = _dp_rank if dp_size is None else fields.whole(0, dp_size - 1)
    return _needed(body, "bootstrap_room", _room), _needed(body, "dp_rank", check)


def parse_query(document: object) -> list[int]:
    """The body of ``query_dp_ranks``: the rooms asked for."""
    rooms = document if isinstance(document, list) else _object(document).get("bootstrap_rooms")
    if rooms is None:
        raise Wrong("bootstrap_rooms", "is missing")
    if not isinstance(rooms, list):
        raise Wrong("bootstrap_rooms", f"{fields.shown(rooms)} must be a list of rooms")
    if len(rooms) > MOST_QUERIED:
        raise Wrong("bootstrap_rooms", f"{len(rooms)} rooms are more than {MOST_QUERIED}")
    return [_checked("bootstrap_rooms", room, _room) for room in rooms]


def difference(known: Shared, said: Shared) -> tuple[str, str] | None:
    """The first field in which ``said`` is not what the instance has, and a sentence; None when there is none.

    Who does not say ``max_prefill_tokens`` does not contradict.
    """
    for name, attribute in _SHARED_FIELDS.items():
        has, says = getattr(known, attribute), getattr(said, attribute)
        if has != says and not (name == "max_prefill_tokens" and None in (has, says)):
            return name, f"the instance has {_plain(has)}, this rank says {_plain(says)}"
    return None


def _parse_dp_rank(body: Body, dp_size: int) -> int:
    check = fields.whole(0, dp_size - 1)
    name, alias = "attn_dp_rank", "system_dp_rank"
    if body.get(alias) is None:
        return int(_needed(body, name, check))
    rank = int(_needed(body, alias, check))
    if _given(body, name, check, rank) != rank:
        raise Wrong(alias, f"{rank} is not attn_dp_rank")
    return rank


def _parse_block_sizes(body: Body) -> tuple[int, ...]:
    only = _given(body, "block_size", _block_size, None)
    several = _given(body, "block_sizes", _block_sizes, None)
    if several is None:
        return (DEFAULT_BLOCK_SIZE if only is None else only,)
    if only not in (None, several[0]):
        raise Wrong("block_sizes", f"begins with {several[0]}, but block_size is {only}")
    return tuple(several)


def _ip(value: object) -> str:
    """An address in numbers that a peer can connect to."""
    host = fields.host(value)
    try:
        ipaddress.ip_address(str(host))
    except ValueError:
        raise ValueError(f"{fields.shown(host)} must be an IP address") from None
    return str(host)


def _object(document: object) -> Body:
    if not isinstance(document, dict):
        raise Wrong(None, f"the body must be a JSON object, not {fields.shown(document)}")
    return document


def _needed(body: Body, name: str, check: Check) -> Any:
    if body.get(name) is None:
        raise Wrong(name, "is missing")
    return _checked(name, body[name], check)


def _given(body: Body, name: str, check: Check, default: object) -> Any:
    return default if body.get(name) is None else _checked(name, body[name], check)


def _checked(name: str, value: object, check: Check) -> Any:
    try:
        return check(value)
    except ValueError as wrong:
        raise Wrong(name, str(wrong)) from None


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else fields.shown(value)
