"""The aux record: 192 bytes per slot in decode's memory, in which first-token logprobs travel.

A prefill rank writes it after the KV and before the slot, under the same seq, at the slot's index in the aux array of
decode's region. The slot's flag says that there is one. Like slots, records are never zeroed: a reader accepts only a
record whose magic, checksum, seq and room are its own.

Little-endian: magic u16, n_top u8, 1 byte of padding, logprob f32, seq u64, room u64, 20 x (token u32, logprob f32),
4 bytes of padding, crc32 of the 188 bytes before it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from pdcore.engine.transfer.orders import MAX_TOP_LOGPROBS, TokenLogprobs

AUX_BYTES: Final = 192
AUX_MAGIC: Final = 0x9D02

_HEAD: Final = struct.Struct("<HBxfQQ")
_PAIR: Final = struct.Struct("<If")
_CRC: Final = struct.Struct("<I")
_BODY_BYTES: Final = AUX_BYTES - _CRC.size


def encode(logprobs: TokenLogprobs, *, seq: int, room: int) -> bytes:
    """The 192 bytes; ``ValueError`` for more than 20 pairs or a token out of range."""
    if len(logprobs.top) > MAX_TOP_LOGPROBS:
        raise ValueError(f"{len(logprobs.top)} top logprobs, at most {MAX_TOP_LOGPROBS} fit")
    try:
        head = _HEAD.pack(AUX_MAGIC, len(logprobs.top), logprobs.logprob, seq, room)
        pairs = b"".join(_PAIR.pack(token, logprob) for token, logprob in logprobs.top)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"logprobs do not fit their record: {error}") from error
    body = (head + pairs).ljust(_BODY_BYTES, b"\0")
    return body + _CRC.pack(zlib.crc32(body))


def accept(data: bytes, *, seq: int, room: int) -> TokenLogprobs | None:
    """The record in ``data`` if it is whole and the one of this (seq, room), else None."""
    if len(data) != AUX_BYTES or _CRC.unpack_from(data, _BODY_BYTES)[0] != zlib.crc32(data[:_BODY_BYTES]):
        return None
    magic, count, logprob, its_seq, its_room = _HEAD.unpack_from(data)
    if magic != AUX_MAGIC or count > MAX_TOP_LOGPROBS or (its_seq, its_room) != (seq, room):
        return None
    pairs = _PAIR.iter_unpack(data[_HEAD.size : _HEAD.size + count * _PAIR.size])
    return TokenLogprobs(logprob=logprob, top=tuple(pairs))
