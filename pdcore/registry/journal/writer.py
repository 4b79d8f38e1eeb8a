"""Writing the journal: any number of writers, each may lag, restart or lose its connection, and together they leave no
hole and make no copy.

A writer never trusts what it remembers of the stream. It watches the store from the stream's own newest entry on, and
appends a revision only behind the entry it was made for; who comes second finds another newest entry and goes on from
that. When the stream's newest entry is older than what a writer knew, the Redis lost its tail: it watches from there
again and writes what the store still has. What the store has no more is told as a gap with a snapshot behind it.

Trouble never leaves a writer: it is logged once, shown in :class:`JournalStatistics`, and tried again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from pdcore.beside import running_beside
from pdcore.clock import Clock, SystemClock
from pdcore.errors import Compacted, StoreError, StoreUnavailable
from pdcore.registry.journal.chain import (
    EMPTY,
    Limits,
    Tail,
    changes_of,
    gap_entries,
    is_enough,
    next_entries,
    tail_of,
)
from pdcore.registry.journal.entries import Entry, Piece
from pdcore.registry.journal.replay import Replayer
from pdcore.registry.journal.stream import Passed, Refused, Stream
from pdcore.registry.store import Alive, Revision, Store, Stored, WatchMessage
from pdcore.telemetry import logger
from pdcore.topology.codec import decode
from pdcore.topology.keys import STORE_ID, Keyspace
from pdcore.topology.records import StoreIdRecord
from pdcore.topology.topology import KeyChange

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
PASSED_EVERY_S: Final = 3600.0
BEFORE: Final = "nothing was recorded before"

_log = logger(__name__)


class _Again(StoreError):
    """What is known of the stream or the store is outdated: read both again."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What comes behind revision ``tail`` may not fit it, so that a gap must be told, unless somebody does so before.

    ``compacted``: this writer could not read on from there; it need not if the journal has gone on from there.
    """

    reason: str
    tail: int
    compacted: bool = False

    def settled(self, tail: Tail) -> bool:
        """Whether the journal as it is now needs no gap for this any more."""
        return (tail.revision if self.compacted else tail.base) > self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """Where a writer stands: everything up to ``revision`` is in the journal; ``error`` says why it writes nothing."""

    revision: int
    error: str | None
    appended_total: int
    gaps_total: int


class JournalWriter:
    """Writes every revision of the view down while its :meth:`running` block lasts.

    ``streams`` gives the journal of a store id. Mutable state: ``_store_id``, ``_tail`` (of the stream, as last seen),
    ``_complete`` (up to where the journal is), ``_position`` (up to where this watch was handed over), ``_heard`` (the
    last proof of life's revision), ``_passed`` (what was last noted so), ``_doubt`` (why the next thing to append is a
    gap), ``_replayed`` (the view at the tail while a snapshot is due), ``_broken_base`` (of a segment that was not whole
    when it was read). It is one task's alone.
    """

    def __init__(
        self,
        store: Store,
        keyspace: Keyspace,
        streams: Callable[[str], Stream],
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._view = keyspace.view
        self._streams = streams
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._random = random or Random()
        self._store_id: str | None = None
        self._tail: Tail = EMPTY
        self._broken_base = 0
        self._complete = 0
        self._position = 0
        self._heard: int | None = None
        self._passed = Passed(0, 0, 0)
        self._doubt: _Doubt | None = None
        self._replayed: Replayer | None = None
        self._error: str | None = "not connected yet"
        self._appended_total = 0
        self._gaps_total = 0

    def __repr__(self) -> str:
        state = "writing" if self._error is None else f"not writing ({self._error})"
        return f"<JournalWriter of {self._view} {state} at {self._complete}>"

    def statistics(self) -> JournalStatistics:
        """Where it stands now."""
        return JournalStatistics(
            revision=self._complete,
            error=self._error,
            appended_total=self._appended_total,
            gaps_total=self._gaps_total,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write while the block lasts."""
        async with running_beside(self._run()):
            yield

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = self._clock.now()
            try:
                await self._write()
            except _Again:
                pause_s = FIRST_PAUSE_S
            except StoreError as error:
                self._note_trouble(error)
            if self._clock.now() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await self._clock.sleep(self._random.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _note_trouble(self, error: StoreError) -> None:
        if self._error != str(error):
            _log.warning("the journal is not written", reason=str(error), revision=self._complete)
        self._error = str(error)

    def _note_writing(self) -> None:
        if self._error is not None:
            _log.info("writing the journal", revision=self._complete)
        self._error = None

    async def _write(self) -> None:
        """Write until something breaks or is found to be outdated."""
        stream = await self._current_stream()
        if self._doubt is not None:
            await self._append_gap(stream, self._doubt.reason)
        self._position = self._complete
        try:
            async with self._store.watch(self._view, self._position) as messages:
                await self._take(stream, await anext(messages))  # connected; what was missed follows
                if await self._read_store_id() != self._store_id:  # only now it is this watch's store
                    raise _Again("the store has another id")
                self._note_writing()
                async for message in messages:
                    await self._take(stream, message)
        except Compacted as error:
            self._doubt = _Doubt(str(error), self._position, compacted=True)
            raise _Again("what comes next is compacted away") from error

    async def _current_stream(self) -> Stream:
        """The journal of the store as it is now, with ``_tail`` and ``_complete`` read from it."""
        store_id = await self._read_store_id()
        if store_id != self._store_id:
            self._store_id, self._doubt = store_id, None
        stream = self._streams(store_id)
        self._tail = tail_of(await stream.newest())
        self._heard, self._replayed = None, None
        self._complete = self._tail.revision
        passed = await stream.passed()
        if passed is not None and passed.top == self._tail.revision:
            self._passed, self._complete = passed, max(self._complete, passed.revision)
        await self._compare_positions()
        if self._tail == EMPTY:
            self._doubt = _Doubt(BEFORE, 0)
        elif self._doubt is not None and self._doubt.settled(self._tail):
            self._doubt = None
        return stream

    async def _read_store_id(self) -> str:
        return _store_id(await self._store.get(self._view + STORE_ID))

    async def _compare_positions(self) -> None:
        """A member of the store that lags may be behind the journal; the store as a whole may not."""
        position = (await self._store.list(self._view + STORE_ID)).revision
        if position < self._complete:
            reason = "the store went back, as one restored from a snapshot does"
            self._doubt = _Doubt(reason, self._tail.revision)
            raise StoreUnavailable(f"the store is at {position}, its journal at {self._complete}")

    def _doubt_behind_tail(self, reason: str) -> None:
        self._doubt = _Doubt(reason, self._tail.revision)
        raise _Again(reason)

    async def _take(self, stream: Stream, message: WatchMessage) -> None:
        if isinstance(message, Alive):
            await self._note_alive(stream, message.revision)
        else:
            await self._append(stream, message)
            self._position = message.revision
            self._complete = max(message.revision, self._tail.revision)
            if any(change.key == self._view + STORE_ID for change in message.changes):
                raise _Again("the store's id was changed")

    async def _append(self, stream: Stream, revision: Revision) -> None:
        changes = changes_of(revision, self._view)
        while self._tail.revision < revision.revision:
            await self._replay_when_due(stream)
            entries = self._next(revision.revision, changes)
            refused = await stream.append(self._tail.revision, entries)
            if refused is None:
                await self._appended(stream, entries)
            else:
                self._note_refused(revision.revision, refused)

    def _note_refused(self, revision: int, refused: Refused) -> None:
        """Another entry is the newest: another writer was first, or entries are gone."""
        if refused.top is None or refused.top.revision < self._tail.revision:
            _log.warning("the journal lost its tail", known=self._tail.revision)
            raise _Again("the journal lost its tail")
        self._tail = tail_of(refused.top)
        if not refused.present and self._tail.base < revision < self._tail.revision:
            self._doubt_behind_tail(f"revision {revision} was left out")

    def _next(self, revision: int, changes: tuple[KeyChange, ...]) -> tuple[Entry, ...]:
        plain = next_entries(self._tail, revision, changes, self._now_ms(), limits=self._limits)
        if self._replayed is None:
            return plain
        self._replayed.take(plain[0])
        return next_entries(
            self._tail,
            revision,
            changes,
            self._now_ms(),
            snapshot=self._replayed.keys,
            limits=self._limits,
        )

    async def _replay_when_due(self, stream: Stream) -> None:
        """While a snapshot is due, hold the view at the tail as the journal has it."""
        if not self._tail.snapshot_due:
            self._replayed = None
        elif self._replayed is None or self._replayed.revision != self._tail.revision:
            self._replayed = Replayer()
            async for entry in stream.entries(self._tail.base, self._tail.revision):
                self._replayed.take(entry)
            if not self._replayed.based or self._replayed.revision != self._tail.revision:
                self._note_broken_segment()

    def _note_broken_segment(self) -> None:
        """What was read is no segment up to the tail: it was trimmed or cut meanwhile, unless it is so twice."""
        before, self._broken_base = self._broken_base, self._tail.base
        if before == self._tail.base:
            self._doubt_behind_tail("the last snapshot is not whole")
        raise _Again("the journal changed while it was read")

    async def _appended(self, stream: Stream, entries: tuple[Entry, ...]) -> None:
        self._tail = tail_of(entries[-1])
        self._appended_total += 1
        if len(entries) > 1:
            self._replayed = None
            await self._trim(stream)

    async def _append_gap(self, stream: Stream, reason: str) -> None:
        """Say that history was lost behind the tail. Who comes second finds a newer tail, and no gap of its own."""
        snapshot = await self._store.list(self._view)
        if _store_id(snapshot.entries.get(self._view + STORE_ID)) != self._store_id:
            raise _Again("the store has another id")
        if snapshot.revision <= self._tail.revision:
            raise StoreUnavailable(
                f"the store is at {snapshot.revision}, its journal at {self._tail.revision}"
            )
        keys = {key.removeprefix(self._view): stored for key, stored in snapshot.entries.items()}
        entries = gap_entries(
            self._tail, snapshot.revision, reason, self._now_ms(), snapshot=keys, limits=self._limits
        )
        if await stream.append(self._tail.revision, entries) is not None:
            raise _Again("another writer was first")
        _log.warning(
            "a gap in the journal", reason=reason, after=self._tail.revision, revision=snapshot.revision
        )
        self._tail = tail_of(entries[-1])
        self._complete = snapshot.revision
        self._replayed, self._doubt = None, None
        self._gaps_total += 1
        await self._trim(stream)

    async def _trim(self, stream: Stream) -> None:
        """Drop the segments that are more than enough, from one base to the one before it."""
        now_ms, base = self._now_ms(), self._tail.base
        while base:
            head = await stream.oldest(base - 1)
            if head is None or head.revision != base or isinstance(head, Piece):
                return
            if is_enough(head, self._tail, now_ms, self._limits):
                await stream.trim(base)
                return
            base = head.base

    async def _note_alive(self, stream: Stream, revision: int) -> None:
        if revision < self._tail.revision:
            await self._compare_positions()
            return
        # What the last proof of life was ahead of has been delivered by now; this one may be ahead of its events.
        before, self._heard = self._heard, revision
        if before is None:
            return
        self._complete = max(self._complete, before)
        now_ms, known = self._now_ms(), self._passed
        is_news = known.top != self._tail.revision or known.revision < self._complete
        if is_news or now_ms - known.time_ms > PASSED_EVERY_S * 1000:
            self._passed = Passed(self._tail.revision, self._complete, now_ms)
            await stream.note_passed(self._passed)

    def _now_ms(self) -> int:
        return round(self._clock.wall() * 1000)


def _store_id(stored: Stored | None) -> str:
    record = None if stored is None else decode(STORE_ID, stored.value)
    if not isinstance(record, StoreIdRecord):
        raise StoreUnavailable("the store has no id yet")
    return record.store_id
