"""The slot: 64 bytes in decode's memory that a prefill rank writes last, once, and that decode polls.

Slots are never zeroed, so a slot holds whatever was written there before: another request's record, half of a record,
a late record. A reader therefore accepts a slot only if magic, checksum, seq *and* room are its own; everything else
reads as "not yet".

Little-endian: magic u16, flags u16 (bit 0: an aux record lies at the same index), seq u64, room u64, token u32,
kv_len u32, status u8, n_spec u8, cached_blocks u16, spec 7 x u32, crc32 of the 60 bytes before it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

SLOT_BYTES: Final = 64
MAGIC: Final = 0x9D01
MAX_SPEC: Final = 7
MAX_CACHED: Final = (1 << 16) - 1
_FEW: Final = 8
"""Up to so many slots are read one by one: see ``plan.FEW_COPIES``."""
HAS_AUX: Final = 1

_BODY: Final = struct.Struct("<HHQQIIBBH7I")
_CRC: Final = struct.Struct("<I")
_SEQ_OFFSET: Final = 4
_COLUMN: Final = np.dtype(
    {"names": ["seq"], "formats": ["<u8"], "offsets": [_SEQ_OFFSET], "itemsize": SLOT_BYTES}
)


class SlotStatus(IntEnum):
    """``DELIVERED`` and ``FAILED``: no write of this seq will ever land after this. ``IN_DOUBT``: one still may."""

    DELIVERED = 1
    FAILED = 2
    IN_DOUBT = 3


_STATUSES: Final = frozenset(int(status) for status in SlotStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What a prefill rank says at the end of one hand-off. ``token`` and ``kv_len`` count only if delivered.

    So do ``cached_blocks``: how many of the prompt's blocks prefill had computed for others, ``MAX_CACHED`` at most.
    """

    seq: int
    room: int
    token: int
    kv_len: int
    status: SlotStatus
    spec: tuple[int, ...] = ()
    has_aux: bool = False
    cached_blocks: int = 0


def encode(slot: Slot) -> bytes:
    """The 64 bytes of ``slot``; ``ValueError`` for more than seven speculative tokens or a field out of range."""
    if len(slot.spec) > MAX_SPEC:
        raise ValueError(f"a slot holds {MAX_SPEC} speculative tokens, not {len(slot.spec)}")
    spec = slot.spec + (0,) * (MAX_SPEC - len(slot.spec))
    try:
        body = _BODY.pack(
            MAGIC,
            HAS_AUX if slot.has_aux else 0,
            slot.seq,
            slot.room,
            slot.token,
            slot.kv_len,
            slot.status,
            len(slot.spec),
            slot.cached_blocks,
            *spec,
        )
    except struct.error as error:
        raise ValueError(f"{slot} does not fit a slot: {error}") from error
    return body + _CRC.pack(zlib.crc32(body))


def decode(data: bytes) -> Slot | None:
    """The slot in 64 bytes, or None when they are not (yet) a whole one."""
    if len(data) != SLOT_BYTES or zlib.crc32(data[:-4]) != _CRC.unpack_from(data, SLOT_BYTES - 4)[0]:
        return None
    magic, flags, seq, room, token, kv_len, status, n_spec, cached, *spec = _BODY.unpack_from(data)
    if magic != MAGIC or n_spec > MAX_SPEC or status not in _STATUSES:
        return None
    return Slot(
        seq=seq,
        room=room,
        token=token,
        kv_len=kv_len,
        status=SlotStatus(status),
        spec=tuple(spec[:n_spec]),
        has_aux=bool(flags & HAS_AUX),
        cached_blocks=cached,
    )


def accept(data: bytes, *, seq: int, room: int) -> Slot | None:
    """The slot in ``data`` if it is the one of this (seq, room), else None."""
    slot = decode(data)
    return slot if slot is not None and slot.seq == seq and slot.room == room else None


class SlotArray:
    """Decode's slots in registered memory. Reads only; ``look`` copies once what is watched, so low indices
    first are cheapest."""

    def __init__(self, memory: memoryview) -> None:
        if memory.nbytes % SLOT_BYTES:
            raise ValueError(f"{memory.nbytes} bytes are no whole number of slots")
        self._memory = memory.cast("B")
        self._wanted: npt.NDArray[np.uint64] = np.zeros(memory.nbytes // SLOT_BYTES, dtype=np.uint64)
        self._owners: dict[int, tuple[int, int]] = {}
        self._end = 0

    def watch(self, index: int, *, seq: int, room: int) -> None:
        """From now on slot ``index`` belongs to (seq, room)."""
        self._wanted[index] = seq
        self._owners[index] = (seq, room)
        self._end = max(self._end, index + 1)

    def forget(self, index: int) -> None:
        """Nobody waits for slot ``index`` any more. Its bytes stay as they are."""
        self._wanted[index] = 0
        self._owners.pop(index, None)
        if index + 1 == self._end:
            self._end = max(self._owners, default=-1) + 1

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._wanted)

    @property
    def end(self) -> int:
        """The index behind the last that is watched."""
        return self._end

    def look(self) -> list[tuple[int, Slot]]:
        """Every watched slot that its owner may accept now, from one read of the array, or of each if they are few."""
        if len(self._owners) <= _FEW:
            return self._accepted(self._owners, self._memory)
        snapshot = memoryview(self._memory[: self._end * SLOT_BYTES].tobytes())
        seqs, wanted = np.frombuffer(snapshot, dtype=_COLUMN)["seq"], self._wanted[: self._end]
        return self._accepted(np.flatnonzero((seqs == wanted) & (wanted != 0)).tolist(), snapshot)

    def _accepted(self, indices: Iterable[int], array: memoryview) -> list[tuple[int, Slot]]:
        found = []
        for index in indices:
            start, (seq, room) = index * SLOT_BYTES, self._owners[index]
            slot = accept(bytes(array[start : start + SLOT_BYTES]), seq=seq, room=room)
            if slot is not None:
                found.append((index, slot))
        return found
