"""The past of a cluster, from whoever still knows it: the store until it compacts, the journal beyond.

One reading interface for both. Events are never stored: they are what :func:`~pdcore.topology.events.diff` says about
the view before and after each step.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from pdcore.errors import Compacted
from pdcore.registry.journal.chain import changes_of
from pdcore.registry.journal.reader import JournalReader, NotKept
from pdcore.registry.journal.replay import Replayer, Step
from pdcore.registry.journal.stream import Stream
from pdcore.registry.store import Revision, Snapshot, Store, WatchMessage
from pdcore.topology.events import Event, diff
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology, build

EMPTY: Final = 1
"""The revision that every store begins with, before anything was written."""


@runtime_checkable
class Remembering(Protocol):
    """What a store offers that can be asked about its past."""

    async def list_at(self, prefix: str, revision: int) -> Snapshot:
        """Every key under ``prefix`` as it was at ``revision``. Raises Compacted."""
        ...

    def recall(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """A watch that proves its life as soon as it is silent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What happened at ``revision``, at ``time_ms`` if somebody looked at a clock, and the view after it.

    ``lost``: why the steps up to here are not known one by one; the events are then coalesced.
    """

    revision: int
    time_ms: int | None
    events: tuple[Event, ...]
    topology: Topology
    lost: str | None = None


class History:
    """Asks the open ``store``, and the journal of its store id if ``streams`` gives one."""

    def __init__(
        self, store: Store, keyspace: Keyspace, streams: Callable[[str], Stream] | None = None
    ) -> None:
        self._store = store
        self._memory = store if isinstance(store, Remembering) else None
        self._view = keyspace.view
        self._streams = streams

    async def now(self) -> Topology:
        """The view as it is."""
        return self._build(await self._store.list(self._view))

    async def at(self, revision: int) -> Topology:
        """The view as it was at ``revision``. Raises :class:`NotKept` with the oldest revision that works."""
        now = await self.now()
        self._refuse_future(revision, now)
        if revision == now.revision:
            return now
        remembered = await self._listed_at(revision)
        if remembered is not None:
            return remembered
        journal = self._journal(now)
        if journal is not None:
            beginning = await journal.beginning()
            if beginning is not None and revision >= beginning.revision:
                return build((await journal.replayed(revision)).keys, revision)
        raise await self._not_kept(revision, now)

    async def at_time(self, time_ms: int) -> Topology:
        """The view as it was at ``time_ms`` by the journal. Raises :class:`NotKept`."""
        now = await self.now()
        journal = self._journal(now)
        end = None if journal is None else await journal.end()
        if journal is None or end is None:
            raise NotKept("there is no journal that says when something happened")
        replayer, surpassed = await journal.replayed_at(time_ms)
        topology = build(replayer.keys, replayer.revision)
        if not surpassed and time_ms > end.time_ms and topology != now:
            raise NotKept(f"the journal ends at revision {end.revision}, the store is at {now.revision}")
        return topology

    async def oldest_ms(self) -> int | None:
        """The oldest time that :meth:`at_time` knows of."""
        journal = self._journal(await self.now())
        beginning = None if journal is None else await journal.beginning()
        return None if beginning is None else beginning.time_ms

    async def since(self, revision: int | None = None) -> AsyncGenerator[Told, None]:
        """What happened after ``revision`` (None: after the oldest view that is kept), until now.

        Raises :class:`NotKept` with the oldest revision that works. Close it (``aclosing``) if it is not read to its
        end: a watch of the store is open meanwhile.
        """
        now = await self.now()
        if revision is None:
            revision = await self._oldest(now)
            if revision is None:
                raise NotKept("this store keeps no history, and there is no journal: --redis names one")
        self._refuse_future(revision, now)
        topology, steps = await self._base(max(revision, EMPTY), now)
        async with aclosing(steps):
            async for step in steps:
                after = step.topology(topology)
                yield _told(topology, after, step.revision, step.time_ms, step.lost, step.keys is not None)
                topology = after
        if topology.revision <= now.revision and topology != now:
            lost = f"nobody knows any more what happened between {topology.revision} and {now.revision}"
            yield _told(topology, now, now.revision, None, lost, True)

    async def _base(self, revision: int, now: Topology) -> tuple[Topology, AsyncGenerator[Step, None]]:
        """The view at ``revision`` and the steps from there: the journal's where it has them, because it knows when."""
        journal = self._journal(now)
        beginning = None if journal is None else await journal.beginning()
        end = None if journal is None else await journal.end()
        if journal is None or beginning is None or end is None or revision > end.revision:
            return await self._store_base(revision, now), self._recalled(revision, now.revision)
        if revision < beginning.revision:
            base = await self._store_base(revision, now)
            return base, self._recalled_and_journaled(revision, beginning.revision, journal, now)
        replayer = await journal.replayed(revision)
        return build(replayer.keys, revision), self._journaled(journal, replayer, now)

    async def _store_base(self, revision: int, now: Topology) -> Topology:
        remembered = await self._listed_at(revision)
        if remembered is None:
            raise await self._not_kept(revision, now)
        return remembered

    async def _recalled_and_journaled(
        self, after: int, beginning: int, journal: JournalReader, now: Topology
    ) -> AsyncGenerator[Step, None]:
        async with aclosing(self._recalled(after, beginning)) as recalled:
            async for step in recalled:
                yield step
        replayer = await journal.replayed(beginning)
        yield Step(
            revision=beginning, time_ms=None, keys=dict(replayer.keys)
        )  # nothing new, unless it compacted
        async with aclosing(self._journaled(journal, replayer, now)) as journaled:
            async for step in journaled:
                yield step

    async def _journaled(
        self, journal: JournalReader, after: Replayer, now: Topology
    ) -> AsyncGenerator[Step, None]:
        """The journal's steps behind ``after``, then those of the store that the journal does not have yet."""
        async for step in journal.steps(after):
            yield step
        end = await journal.end()
        if end is not None:
            async with aclosing(self._recalled(max(after.revision, end.revision), now.revision)) as recalled:
                async for step in recalled:
                    yield step

    async def _recalled(self, after: int, until: int) -> AsyncGenerator[Step, None]:
        """The store's own steps behind ``after`` up to ``until``, as far as it still knows them."""
        if self._memory is None or after >= until:
            return
        try:
            async with self._memory.recall(self._view, after) as messages:
                await anext(messages)  # connected
                async for message in messages:
                    if isinstance(message, Revision) and message.revision <= until:
                        changes = changes_of(message, self._view)
                        yield Step(revision=message.revision, time_ms=None, changes=changes)
                    if message.revision >= until:
                        return
        except Compacted:
            return  # whoever folds the steps sees what is missing

    async def _listed_at(self, revision: int) -> Topology | None:
        """The view at ``revision`` as the store knows it; None when it does not."""
        if self._memory is None:
            return None
        try:
            snapshot = await self._memory.list_at(self._view, revision)
        except Compacted:
            return None
        return self._build(Snapshot(revision, snapshot.entries))

    async def _oldest(self, now: Topology) -> int | None:
        """The oldest revision whose view anybody knows; None when only the present is known."""
        journal = self._journal(now)
        beginning = None if journal is None else await journal.beginning()
        known = [] if beginning is None else [beginning.revision]
        if self._memory is not None:
            known.append(await self._compacted_up_to(self._memory))
        return min(known, default=None)

    async def _compacted_up_to(self, memory: Remembering) -> int:
        """The store's oldest revision."""
        try:
            async with memory.recall(self._view, 0) as messages:
                await anext(messages)
                await anext(messages)
        except Compacted as compacted:
            return compacted.compacted_revision
        return 1

    async def _not_kept(self, revision: int, now: Topology) -> NotKept:
        oldest = await self._oldest(now)
        if oldest is None:
            why = f"this store knows only the present, which is revision {now.revision}"
            return NotKept(f"revision {revision} is not kept: {why}; a journal (--redis) knows more")
        return NotKept(f"revision {revision} is not kept any more; the oldest that works is {oldest}")

    def _refuse_future(self, revision: int, now: Topology) -> None:
        if revision > now.revision:
            raise NotKept(f"revision {revision} has not happened yet; the store is at {now.revision}")

    def _journal(self, now: Topology) -> JournalReader | None:
        if self._streams is None or now.store_id is None:
            return None
        return JournalReader(self._streams(now.store_id))

    def _build(self, snapshot: Snapshot) -> Topology:
        listed = {key.removeprefix(self._view): stored for key, stored in snapshot.entries.items()}
        return build(listed, snapshot.revision)


def _told(
    before: Topology, after: Topology, revision: int, time_ms: int | None, lost: str | None, coalesced: bool
) -> Told:
    events = diff(before, after, coalesced=coalesced)
    return Told(revision=revision, time_ms=time_ms, events=events, topology=after, lost=lost)
