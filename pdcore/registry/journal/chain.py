"""What to append to the journal, when a snapshot is due, what to trim. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pdcore.registry.journal.entries import Changes, Entry, Gap, Piece, pieces, written
from pdcore.registry.store import Revision
from pdcore.topology.topology import KeyChange, StoredValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``snapshot_every``: revisions per segment, or as many as there are keys if those are more, so that snapshots
    cost about one key per revision. Of the rest at least ``length`` revisions and ``age_s`` seconds are kept."""

    snapshot_every: int = 1_000
    length: int = 20_000
    age_s: float = 7 * 86400.0

    def segment(self, keys: int) -> int:
        """Revisions until the next snapshot after one of ``keys`` keys."""
        return max(self.snapshot_every, keys)


def changes_of(revision: Revision, view: str) -> tuple[KeyChange, ...]:
    """A watched revision as a topology folds it, keys relative to ``view``."""
    return tuple(
        KeyChange(
            change.key.removeprefix(view),
            None if change.stored is None else change.stored.value,
            revision.revision,
        )
        for change in revision.changes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What the next entry must know of the one before it."""

    revision: int = 0
    base: int = 0
    number: int = 0
    left: int = 0

    @property
    def snapshot_due(self) -> bool:
        """The next revision should be followed by a snapshot."""
        return self.left <= 0


EMPTY: Final = Tail()


def tail_of(top: Entry | None) -> Tail:
    """The tail of a stream whose newest entry is ``top``."""
    match top:
        case Changes():
            return Tail(revision=top.revision, base=top.base, number=top.number, left=top.left)
        case Piece():
            return Tail(revision=top.revision, base=top.revision, number=top.number, left=top.left)
        case Gap():  # only if somebody cut its snapshot off: one is due at once
            return Tail(revision=top.revision, base=top.base, number=top.number)
        case None:
            return EMPTY


def next_entries(
    tail: Tail,
    revision: int,
    changes: Iterable[KeyChange],
    time_ms: int,
    *,
    snapshot: Mapping[str, StoredValue] | None = None,
    limits: Limits,
) -> tuple[Entry, ...]:
    """What ``revision`` adds behind ``tail``; with ``snapshot`` (the view after it) it begins a segment."""
    happened = Changes(
        revision=revision,
        number=tail.number + 1,
        time_ms=time_ms,
        after=tail.revision,
        base=tail.base,
        left=tail.left - 1,
        changes=written(changes),
    )
    if snapshot is None:
        return (happened,)
    return (happened, *_pieces(happened, snapshot, limits))


def gap_entries(
    tail: Tail,
    revision: int,
    reason: str,
    time_ms: int,
    *,
    snapshot: Mapping[str, StoredValue],
    limits: Limits,
) -> tuple[Entry, ...]:
    """What says that everything between ``tail`` and ``revision`` is lost, and how the view is at ``revision``."""
    gap = Gap(
        revision=revision,
        number=tail.number + 1,
        time_ms=time_ms,
        after=tail.revision,
        base=tail.base,
        reason=reason,
    )
    return (gap, *_pieces(gap, snapshot, limits))


def _pieces(head: Changes | Gap, keys: Mapping[str, StoredValue], limits: Limits) -> tuple[Piece, ...]:
    left = limits.segment(len(keys))
    return pieces(keys, revision=head.revision, number=head.number, left=left, time_ms=head.time_ms)


def is_enough(base: Entry, newest: Tail, now_ms: int, limits: Limits) -> bool:
    """Whether a journal that begins with the segment of ``base`` keeps what it must: older segments may go."""
    return newest.number - base.number >= limits.length or now_ms - base.time_ms >= limits.age_s * 1000
