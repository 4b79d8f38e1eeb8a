"""Where a request can be inside a rank, and where it may go from there: the one table of a scheduler's states.

``MOVES`` is all there is; a role that does not use a place never reaches it. What a place holds:

    BOOTSTRAP   nothing       prefill: waits for decode's handshake
    PREALLOC    nothing       waits for blocks
    RUNNING     its blocks    computes
    TRANSFER    its blocks    its KV is on its way, from here (prefill) or to here (decode)
    RETRACTED   nothing       gave its blocks back and keeps its tokens; waits to be computed once more
    ENDED       nothing       the leader was told, or never asks again
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class Place(Enum):
    """See the module."""

    BOOTSTRAP = auto()
    PREALLOC = auto()
    RUNNING = auto()
    TRANSFER = auto()
    RETRACTED = auto()
    ENDED = auto()


MOVES: Final[Mapping[Place, frozenset[Place]]] = {
    Place.BOOTSTRAP: frozenset({Place.PREALLOC, Place.ENDED}),
    Place.PREALLOC: frozenset({Place.RUNNING, Place.TRANSFER, Place.ENDED}),
    Place.RUNNING: frozenset({Place.TRANSFER, Place.RETRACTED, Place.ENDED}),
    Place.TRANSFER: frozenset({Place.RUNNING, Place.ENDED}),
    Place.RETRACTED: frozenset({Place.RUNNING, Place.ENDED}),
    Place.ENDED: frozenset(),
}
