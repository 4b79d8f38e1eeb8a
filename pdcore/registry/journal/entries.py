"""What the journal's entries say, and their JSON. Pure.

An entry's place in the stream is ``(revision, part)``; its Redis id is ``{revision}-{part}``. Part 0 is what happened
(``changes``, or a ``gap``), parts from 1 on are a snapshot of the view at that revision in pieces, written together
with part 0. So the stream is a chain of segments, and each begins with a snapshot, its *base*.

=============  =======================================================================================================
``v``          1; another version is refused, unknown fields are not
``revision``   the store's revision; ``after`` the revision of the entry before (0: nothing before)
``base``       the revision of the newest snapshot before this entry (0: none)
``number``     how many revisions the stream was given so far, trimmed ones included
``left``       how many more until the next snapshot is due
``time_ms``    the writer's wall clock, milliseconds since 1970: when it was written down, at most a lag after it happened
``changes``    ``[{"key", "value"}]``; ``base64`` instead for bytes that are no UTF-8, ``size`` instead for a value too
               long for any record, neither for a delete. Keys are relative to the view
``keys``       the same with ``mod_revision``; ``part`` of ``parts``
``reason``     of a gap: why everything between ``after`` and ``revision`` is unknown
=============  =======================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from pdcore.errors import StoreRefused
from pdcore.topology.codec import MAX_VALUE_BYTES
from pdcore.topology.topology import KeyChange, Stored, StoredValue

VERSION: Final = 1
PIECE_BYTES: Final = 64 << 10
LONGEST_VALUE: Final = 8 << 20


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key's value, or its end when it has none of the three forms of a value."""

    key: str
    value: str | None = None
    base64: bytes | None = None
    size: int | None = None
    mod_revision: int = 0

    @classmethod
    def of(cls, key: str, value: bytes | None, mod_revision: int = 0) -> Written:
        """The shortest form that replays to an equal topology."""
        if value is None:
            return cls(key=key, mod_revision=mod_revision)
        if len(value) > MAX_VALUE_BYTES:
            return cls(key=key, size=len(value), mod_revision=mod_revision)
        try:
            return cls(key=key, value=value.decode(), mod_revision=mod_revision)
        except UnicodeDecodeError:
            return cls(key=key, base64=value, mod_revision=mod_revision)

    @property
    def raw(self) -> bytes | None:
        """The value; of one too long only the length is true."""
        if self.value is not None:
            return self.value.encode()
        return self.base64 if self.size is None else bytes(min(self.size, LONGEST_VALUE))


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    v: int = VERSION
    revision: int
    number: int
    time_ms: int


class Changes(_Entry, frozen=True, kw_only=True, tag="changes"):
    """Everything that changed in the view at ``revision``."""

    after: int
    base: int
    left: int
    changes: tuple[Written, ...]

    @property
    def key_changes(self) -> tuple[KeyChange, ...]:
        """As a topology folds them."""
        return tuple(KeyChange(one.key, one.raw, self.revision) for one in self.changes)


class Gap(_Entry, frozen=True, kw_only=True, tag="gap"):
    """What happened between ``after`` and ``revision`` is lost; a snapshot at ``revision`` follows."""

    after: int
    base: int
    reason: str


class Piece(_Entry, frozen=True, kw_only=True, tag="snapshot"):
    """A piece of the view at ``revision``."""

    part: int
    parts: int
    left: int
    keys: tuple[Written, ...]


Entry = Changes | Gap | Piece

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Entry)


def part_of(entry: Entry) -> int:
    """The second half of the entry's place."""
    return entry.part if isinstance(entry, Piece) else 0


def encode(entry: Entry) -> bytes:
    """The entry as one line of JSON."""
    return _encoder.encode(entry)


def decode(line: bytes) -> Entry:
    """The entry in ``line``; StoreRefused when it is none that this version reads."""
    try:
        entry = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError) as wrong:
        raise StoreRefused(f"an entry of the journal cannot be read: {wrong}") from wrong
    if entry.v != VERSION:
        raise StoreRefused(f"an entry of the journal has version {entry.v}, this program reads {VERSION}")
    return entry


def written(changes: Iterable[KeyChange]) -> tuple[Written, ...]:
    """One revision's changes as an entry has them."""
    return tuple(Written.of(change.key, change.value) for change in changes)


def pieces(
    keys: Mapping[str, StoredValue], *, revision: int, number: int, left: int, time_ms: int
) -> tuple[Piece, ...]:
    """A snapshot of ``keys``, at least one piece, each about ``PIECE_BYTES`` long."""
    cut = tuple(_cut(keys)) or ((),)
    return tuple(
        Piece(
            revision=revision,
            number=number,
            time_ms=time_ms,
            part=part,
            parts=len(cut),
            left=left,
            keys=one,
        )
        for part, one in enumerate(cut, start=1)
    )


def _cut(keys: Mapping[str, StoredValue]) -> Iterator[tuple[Written, ...]]:
    piece: list[Written] = []
    size = 0
    for key, stored in sorted(keys.items()):
        piece.append(Written.of(key, stored.value, stored.mod_revision))
        size += len(key) + min(len(stored.value), MAX_VALUE_BYTES)
        if size >= PIECE_BYTES:
            yield tuple(piece)
            piece, size = [], 0
    if piece:
        yield tuple(piece)


def stored_keys(piece: Piece) -> dict[str, Stored]:
    """The keys of one piece."""
    return {one.key: Stored(one.raw or b"", one.mod_revision) for one in piece.keys}
