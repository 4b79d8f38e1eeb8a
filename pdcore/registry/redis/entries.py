"""Keys, values and stream entries, from Redis' answers to the contract's values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pdcore.errors import Compacted, StoreRefused, StoreUnavailable
from pdcore.registry.store import Change, LeaseId, Revision, Stored

VIEW: Final = "view"
SIDE: Final = "side"
NUL: Final = "\0"
"""Joins deleted keys in a stream entry, so no key may hold it."""

_SIDE_KEY: Final = re.compile(r"/[^/]*/[^/]*/side/")

Fields = Mapping[bytes, bytes]
RawEntry = tuple[bytes, Fields]


def areas_of(prefix: str) -> tuple[str, ...]:
    """The areas that can hold a key under ``prefix``: who follows one does not wake for the other."""
    if _SIDE_KEY.match(prefix):
        return (SIDE,)
    segments = prefix.split("/", 4)
    if (prefix and not prefix.startswith("/")) or len(segments) == 5:
        return (VIEW,)
    return (VIEW, SIDE) if len(segments) < 4 or f"{SIDE}/".startswith(segments[3]) else (VIEW,)


def prefix_bounds(prefix: str) -> tuple[bytes, bytes]:
    """First and last name under ``prefix`` as bounds of a lexicographical range."""
    key = prefix.encode()
    if not key:
        return b"-", b"+"
    return b"[" + key, b"(" + key[:-1] + bytes([key[-1] + 1])  # no text ends with the byte 255


@contextmanager
def _reading() -> Iterator[None]:
    """What no script of ours wrote is refused, whatever it is."""
    try:
        yield
    except (ValueError, KeyError) as error:
        raise StoreRefused("Redis holds something below {pdcore}: that pdcore did not write") from error


def stored(entry: bytes) -> Stored:
    """What the hash of entries holds for a key. Raises :class:`StoreRefused` when somebody else wrote it."""
    with _reading():
        created, modified, lease, value = entry.split(b" ", 3)
        return Stored(value, int(modified), int(created), _lease(lease))


def _lease(text: bytes) -> LeaseId | None:
    return None if text == b"0" else LeaseId(int(text))


@dataclass(frozen=True, slots=True)
class Entry:
    """One area's share of a revision. ``after`` is the revision before it in that area."""

    revision: int
    timeline: bytes
    after: int
    changes: tuple[Change, ...]


def read_entry(raw: RawEntry) -> Entry:
    """A stream entry as the scripts write it. Raises :class:`StoreRefused` when somebody else wrote it."""
    with _reading():
        entry_id, fields = raw
        revision = int(entry_id.partition(b"-")[0])
        timeline, after = fields[b"after"].split(b" ")
        gone = fields[b"gone"].decode().split(NUL) if b"gone" in fields else []
        puts = [
            Change(name[1:].decode(), _put(text, revision))
            for name, text in fields.items()
            if name[:1] == b"+"
        ]
        return Entry(revision, timeline, int(after), (*(Change(key, None) for key in gone), *puts))


def _put(text: bytes, revision: int) -> Stored:
    created, lease, value = text.split(b" ", 2)
    return Stored(value, revision, int(created), _lease(lease))


class Sequel:
    """Puts the areas' entries after ``position`` together into whole revisions, and notices what is missing.

    ``timeline`` and ``revision`` are the store's when it was asked for its position: what is older may have been
    written before a restart, what is newer was not. A store without a timeline was never written to.
    """

    def __init__(self, position: int, timeline: bytes, revision: int) -> None:
        self.position = position
        self._timeline = timeline
        self._revision = revision

    def add(self, batches: Sequence[Sequence[Entry]], limit: int) -> list[Revision]:
        """The revisions that are complete now. A batch of ``limit`` entries may have been cut off there.

        Raises :class:`Compacted` when something before an entry is missing, :class:`StoreUnavailable` when another
        store answers than the one this began with.
        """
        end = min((batch[-1].revision for batch in batches if len(batch) >= limit), default=None)
        merged: dict[int, tuple[Change, ...]] = {}
        for batch in batches:
            previous = self.position
            for entry in batch:
                self._check(entry, previous)  # also of what waits: its missing predecessor may be due now
                if end is not None and entry.revision > end:
                    break
                previous = entry.revision
                merged[previous] = merged.get(previous, ()) + entry.changes
        self.position = max(merged, default=self.position)
        return [Revision(revision, merged[revision]) for revision in sorted(merged)]

    def check_timeline(self, timeline: bytes) -> None:
        """Raises :class:`StoreUnavailable` when ``timeline`` is not the one of the store this began with."""
        self._timeline = self._timeline or timeline
        if timeline != self._timeline:
            raise StoreUnavailable("the store was wiped, or became another one, under this reader")

    def _check(self, entry: Entry, previous: int) -> None:
        if entry.revision > self._revision:
            self.check_timeline(entry.timeline)
        if entry.after > previous:
            raise Compacted(entry.after)


def under(prefix: str, revision: Revision) -> Revision | None:
    """The part of ``revision`` under ``prefix``; None when there is none."""
    changes = tuple(change for change in revision.changes if change.key.startswith(prefix))
    return Revision(revision.revision, changes) if changes else None
