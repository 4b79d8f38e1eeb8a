"""Keys, values and bounds of the room directory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from pdcore.topology.keys import Keyspace

HIGHEST_ROOM: Final = (1 << 63) - 1
HIGHEST_DP_RANK: Final = 1023
MOST_AWAITED: Final = 1 << 17
_NAME: Final = re.compile(r"([A-Za-z0-9._:-]{1,128})/([1-9][0-9]{0,18})")
_RANK: Final = re.compile(rb"0|[1-9][0-9]{0,3}")


class RoomName(NamedTuple):
    """One room of one prefill instance."""

    instance_id: str
    room: int


def prefix(keyspace: Keyspace) -> str:
    """Below it lie the rooms of every instance of the cluster."""
    return f"{keyspace.side}rooms/"


def key(keyspace: Keyspace, name: RoomName) -> str:
    """Where the entry of one room is."""
    return f"{prefix(keyspace)}{name.instance_id}/{name.room}"


def parse(relative: str) -> RoomName | None:
    """The room that a key (relative to :func:`prefix`) is about, None for a foreign key."""
    found = _NAME.fullmatch(relative)
    if found is None or int(found[2]) > HIGHEST_ROOM:
        return None
    return RoomName(found[1], int(found[2]))


def encode_rank(dp_rank: int) -> bytes:
    """The value of an entry."""
    return b"%d" % dp_rank


def decode_rank(value: bytes) -> int | None:
    """The DP rank in a value, None when it is none."""
    if _RANK.fullmatch(value) is None or int(value) > HIGHEST_DP_RANK:
        return None
    return int(value)


def check(rooms: Iterable[tuple[int, int]]) -> None:
    """ValueError for a room or DP rank that no entry can have."""
    for room, dp_rank in rooms:
        if not 1 <= room <= HIGHEST_ROOM:
            raise ValueError(f"room {room} is not from 1 to {HIGHEST_ROOM}")
        if not 0 <= dp_rank <= HIGHEST_DP_RANK:
            raise ValueError(f"DP rank {dp_rank} is not from 0 to {HIGHEST_DP_RANK}")
