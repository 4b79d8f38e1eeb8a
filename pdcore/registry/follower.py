"""Following the keyspace: one process's current topology, kept equal to the store.

List once, then watch from the list's revision on; after a break resume from the last revision handed over. Whenever
the position is in doubt (compacted away, another store id, a revision that went back) list again and tell the
difference as coalesced events. A reconcile after each resumption and every few minutes compares a fresh list with
what was followed; it finds nothing unless something is broken, and then it repairs and counts.

Trouble with the store never ends a follower: the last view stays and ages. A subscriber that raises does end it: the
exception leaves through the ``async with`` block that owns the follower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self

from pdcore.beside import running_beside
from pdcore.clock import Clock, SystemClock
from pdcore.errors import Compacted, StoreError, StoreUnavailable
from pdcore.registry.store import Alive, Revision, Snapshot, Store, Stored, WatchMessage
from pdcore.registry.store_identity import ensure_store_id
from pdcore.telemetry import logger
from pdcore.topology.events import Event, diff
from pdcore.topology.keys import STORE_ID, Keyspace
from pdcore.topology.topology import KeyChange, StoredValue, Topology, fold, relist

OnEvents = Callable[[tuple[Event, ...], Topology], None]
OnTopology = Callable[[Topology], None]

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
RECONCILE_S: Final = 300.0
RECONCILE_AGAIN_S: Final = 5.0
SPREAD_S: Final = 1.0
CONFIRM_S: Final = 1.0
STORE_ID_TRIES: Final = 3
SHOWN_KEYS: Final = 10

_log = logger(__name__)


class _Doubt(StoreError):
    """The position may not belong to this store any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatistics:
    """What an operator sees of a follower. ``view_age_s`` is infinite before the first proof of life."""

    synced: bool
    revision: int
    view_age_s: float
    last_error: str | None
    reconnects_total: int
    relists_total: int
    repairs_total: int


class Follower:
    """Keeps :attr:`topology` equal to the keyspace while its ``async with`` block lasts.

    ``store`` is open and belongs to the caller. Mutable state: ``_topology`` (replaced in ``_replace`` only),
    ``_position`` (complete up to it), ``_passed`` (what this connection has delivered, as far as the store's word
    goes; 0 without one), ``_confirmed`` (what of that is believed), ``_breaks`` (how many connections ended),
    ``_doubt`` (why the next one must list, None to resume), ``_touched`` (keys changed since a reconcile began
    listing), ``_heard`` and ``_changed`` (they wake who waits for a message or a new topology, and are never left set). It is changed
    between two awaits, so no lock is needed.
    """

    def __init__(
        self,
        store: Store,
        keyspace: Keyspace,
        *,
        clock: Clock | None = None,
        reconcile_s: float = RECONCILE_S,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._view = keyspace.view
        self._clock = clock or SystemClock()
        self._reconcile_s = reconcile_s
        self._random = random or Random()
        self._topology = Topology.empty()
        self._store_id: bytes | None = None
        self._position = 0
        self._passed = 0
        self._confirmed = 0
        self._breaks = 0
        self._alive_at: float | None = None
        self._doubt: str | None = "nothing was listed yet"
        self._touched: set[str] | None = None
        self._heard = asyncio.Event()
        self._changed = asyncio.Event()
        self._observers: list[OnTopology] = []
        self._subscribers: list[OnEvents] = []
        self._open = AsyncExitStack()
        self.synced = False
        self.last_error: str | None = self._doubt
        self.reconnects_total = 0
        self.relists_total = 0
        self.repairs_total = 0

    def __repr__(self) -> str:
        state = "following" if self.last_error is None else f"not following ({self.last_error})"
        return f"<Follower of {self._view} {state} at {self._position}>"

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(running_beside(self._run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    @property
    def topology(self) -> Topology:
        """The newest complete view; empty until :attr:`synced`."""
        return self._topology

    @property
    def revision(self) -> int:
        """The revision of the store up to which :attr:`topology` is complete; 0 until :attr:`synced`."""
        return max(self._position, self._confirmed)

    def view_age_s(self) -> float:
        """Seconds since the store last proved that the view is current; infinite before the first time."""
        return float("inf") if self._alive_at is None else max(0.0, self._clock.now() - self._alive_at)

    def statistics(self) -> FollowerStatistics:
        """Where the follower stands now."""
        return FollowerStatistics(
            synced=self.synced,
            revision=self.revision,
            view_age_s=self.view_age_s(),
            last_error=self.last_error,
            reconnects_total=self.reconnects_total,
            relists_total=self.relists_total,
            repairs_total=self.repairs_total,
        )

    async def wait_until(self, predicate: Callable[[Topology], bool], timeout_s: float) -> Topology:
        """The first complete view for which ``predicate`` holds; TimeoutError when there is none in time."""
        async with asyncio.timeout(timeout_s):
            while not (self.synced and predicate(self._topology)):
                await self._changed.wait()
        return self._topology

    async def wait_for(self, revision: int, timeout_s: float) -> int:
        """:attr:`revision` once it is at least ``revision``, whatever that one wrote; TimeoutError when not in time.

        A write to the view is known as soon as its event is here. Of any other the store's word that everything up to
        it was delivered is believed a second later, as long as the connection lasted: some servers' word overtakes
        events.
        """
        async with asyncio.timeout(timeout_s):
            while self.revision < revision:
                if self._passed < revision:
                    await self._heard.wait()
                    continue
                breaks = self._breaks
                await self._clock.sleep(CONFIRM_S)
                if self._breaks == breaks:
                    self._confirmed = max(self._confirmed, revision)
        return self.revision

    def observe(self, on_topology: OnTopology) -> Callable[[], None]:
        """Call ``on_topology`` with every later topology, before any subscriber hears of its events.

        It is called between two awaits, must return quickly and must not raise. Returns how to stop.
        """
        self._observers.append(on_topology)
        return lambda: self._observers.remove(on_topology)

    def subscribe(self, on_events: OnEvents) -> Callable[[], None]:
        """Call ``on_events`` with the events of every later change and the topology after it.

        It is called between two awaits, must return quickly and must not raise. Returns how to unsubscribe.
        """
        self._subscribers.append(on_events)

        def unsubscribe() -> None:
            if on_events in self._subscribers:
                self._subscribers.remove(on_events)

        return unsubscribe

    async def _run(self) -> None:
        pause_s, doubted = FIRST_PAUSE_S, False
        while True:
            began = self._clock.now()
            try:
                await self._follow()
            except (Compacted, _Doubt) as doubt:
                if not doubted:
                    pause_s = FIRST_PAUSE_S  # the store is there, however long it was away
                doubted, self._doubt = True, str(doubt)
                self._note_break(doubt)
            except StoreError as error:
                doubted = False
                self._note_break(error)
            if self._clock.now() - began > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await self._clock.sleep(self._random.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _note_break(self, error: StoreError) -> None:
        self._breaks += 1
        self._passed = 0
        if self.last_error is None:
            self.reconnects_total += 1
        if self.last_error != str(error):
            _log.warning("not following the store", reason=str(error), revision=self._position)
        self.last_error = str(error)

    async def _follow(self) -> None:
        """Follow until the connection breaks or the position is in doubt."""
        resumed = self._doubt is None
        if not resumed:
            await self._relist()
        self._note_passed(self._position)
        first_pause_s = self._random.uniform(0, SPREAD_S) if resumed else self._reconcile_pause_s()
        async with (
            self._store.watch(self._view, self._position) as messages,
            running_beside(self._reconcile_for_ever(first_pause_s)),
        ):
            connected = await anext(messages)  # what was missed still follows
            if resumed:
                # only now: before, the store could still be replaced between the answer and the watch
                await self._compare_store_id()
            self._hear(connected)
            async for message in messages:
                self._hear(message)
                self._note_passed(message.revision)

    async def _compare_store_id(self) -> None:
        stored = await self._store.get(self._view + STORE_ID)
        if stored is None or stored.value != self._store_id:
            raise _Doubt("the store has another id")

    async def _relist(self) -> None:
        snapshot = await self._list_with_store_id()
        if self.synced:
            self.relists_total += 1
            _log.warning("listing the store again", reason=self._doubt, revision=snapshot.revision)
        listed = self._relative(snapshot)
        self._store_id = listed[STORE_ID].value
        self._position, self._confirmed = snapshot.revision, 0
        self._alive_at = self._clock.now()
        self._doubt = None
        self.synced = True
        self._replace(relist(self._topology, listed, snapshot.revision), coalesced=True)

    async def _list_with_store_id(self) -> Snapshot:
        """A list that holds the store's id, which is created when nobody has done so yet."""
        key = self._view + STORE_ID
        for _ in range(STORE_ID_TRIES):
            snapshot = await self._store.list(self._view)
            if key in snapshot.entries:
                return snapshot
            await ensure_store_id(self._store, self._view)
        raise StoreUnavailable(f"{key} vanished {STORE_ID_TRIES} times while it was being created")

    def _hear(self, message: WatchMessage) -> None:
        if isinstance(message, Alive) and message.revision < self._position:
            raise _Doubt(f"the store is at revision {message.revision}, before {self._position}")
        self._alive_at = self._clock.now()
        if self.last_error is not None:
            _log.info("following the keyspace", revision=self._position)
            self.last_error = None
        if isinstance(message, Revision):
            self._apply(message)

    def _note_passed(self, revision: int) -> None:
        self._passed = max(self._passed, revision)
        self._heard.set()
        self._heard.clear()

    def _apply(self, revision: Revision) -> None:
        if revision.revision <= self._position:
            return
        changes = [
            KeyChange(
                change.key.removeprefix(self._view),
                None if change.stored is None else change.stored.value,
                revision.revision,
            )
            for change in revision.changes
        ]
        if self._touched is not None:
            self._touched.update(change.key for change in changes)
        self._position = revision.revision
        self._replace(fold(self._topology, revision.revision, changes), coalesced=False)
        if any(change.key == STORE_ID and change.value != self._store_id for change in changes):
            raise _Doubt("the store's id was changed")

    def _replace(self, topology: Topology, *, coalesced: bool) -> None:
        """The one place where this process's topology changes."""
        old, self._topology = self._topology, topology
        self._changed.set()
        self._changed.clear()
        for on_topology in tuple(self._observers):
            on_topology(topology)
        events = diff(old, topology, coalesced=coalesced)
        if events:
            for on_events in tuple(self._subscribers):
                on_events(events, topology)

    async def _reconcile_for_ever(self, first_pause_s: float) -> None:
        """While one connection lasts: compare with a fresh list after ``first_pause_s``, then every few minutes."""
        pause_s = first_pause_s
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self._reconcile()
                pause_s = self._reconcile_pause_s()
            except StoreError as error:
                _log.warning("no reconcile", reason=str(error), revision=self._position)
                pause_s = RECONCILE_AGAIN_S

    def _reconcile_pause_s(self) -> float:
        return self._reconcile_s * self._random.uniform(0.9, 1.0)

    async def _reconcile(self) -> None:
        """Compare with a fresh list, and replace the view if a second list shows a difference as well.

        One difference proves nothing: some servers let a progress answer overtake events.
        """
        for confirming in (False, True):
            with self._recording_touched() as touched:
                snapshot = await self._store.list(self._view)
                await self._wait_passed(snapshot.revision)
                listed, held = self._relative(snapshot), self._topology.keys
                differing = _differing(listed, held, touched)
                if not differing:
                    self._position = max(self._position, snapshot.revision)
                    return
                if confirming:
                    self._repair(_merged(listed, held, touched), snapshot.revision, differing)
                    return
            await self._clock.sleep(CONFIRM_S)

    @contextmanager
    def _recording_touched(self) -> Iterator[Set[str]]:
        self._touched = touched = set[str]()
        try:
            yield touched
        finally:
            self._touched = None

    async def _wait_passed(self, revision: int) -> None:
        """Wait until this watch has delivered everything up to ``revision``; a watch that breaks cancels it."""
        while self._passed < revision:
            await self._heard.wait()

    def _repair(self, keys: Mapping[str, StoredValue], revision: int, differing: Sequence[str]) -> None:
        self.repairs_total += 1
        shown = " ".join(differing[:SHOWN_KEYS])
        _log.error("the view was not the store's: repaired", keys=shown, differing=len(differing))
        self._position = max(self._position, revision)
        self._replace(relist(self._topology, keys, self._position), coalesced=True)

    def _relative(self, snapshot: Snapshot) -> dict[str, Stored]:
        return {key.removeprefix(self._view): stored for key, stored in snapshot.entries.items()}


def _differing(
    listed: Mapping[str, StoredValue], held: Mapping[str, StoredValue], touched: Set[str]
) -> tuple[str, ...]:
    """The keys that were not ``touched`` since the list was asked for and yet are not as listed."""
    return tuple(
        key
        for key in sorted((listed.keys() | held.keys()) - touched)
        if key not in listed or key not in held or listed[key].mod_revision != held[key].mod_revision
    )


def _merged(
    listed: Mapping[str, StoredValue], held: Mapping[str, StoredValue], touched: Set[str]
) -> dict[str, StoredValue]:
    """``listed``, with what the watch has told since for the keys it ``touched``."""
    untouched = {key: stored for key, stored in listed.items() if key not in touched}
    return untouched | {key: stored for key, stored in held.items() if key in touched}
