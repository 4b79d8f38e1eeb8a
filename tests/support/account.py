"""Counting every change: what a writer had acknowledged against what a follower told, each once and at its revision.

An :class:`Account` is a writer and a follower at work on one store; :func:`balance` judges them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Self

from pdcore.errors import StoreError
from pdcore.registry.follower import Follower
from pdcore.registry.store import Delete, Put, Store
from pdcore.topology import codec, keys
from pdcore.topology.events import Event, RouterJoined, RouterLost
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import RouterRecord
from pdcore.topology.topology import Topology, build
from tests.support.eventually import eventually

PERIOD_S: Final = 0.01
PAUSE_S: Final = 0.05
KEPT: Final = 20
WARM: Final = 30
WITHIN_S: Final = 20.0
_RECORD: Final = codec.encode(
    RouterRecord(url="http://127.0.0.1:1", admin_url="http://127.0.0.1:1", version="1")
)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A write that the store said it did."""

    revision: int
    at: float


@dataclass(frozen=True, slots=True)
class Told:
    """The first event about a name."""

    revision: int
    coalesced: bool
    at: float


@dataclass(slots=True)
class Writer:
    """Puts a new router and deletes the twentieth before it in one revision, a hundred times a second.

    A name whose write ended without an answer is never judged: it may stand or not. A write begins when the one before
    has ended, so the last one is the newest.
    """

    store: Store
    keyspace: Keyspace
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    refusals: int = 0
    last_error: str | None = None
    paused: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + PERIOD_S, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.paused:
                continue
            try:
                await self.write()
            except StoreError as error:
                self.refusals += 1
                self.last_error = str(error)
                await asyncio.sleep(PAUSE_S)

    async def write(self) -> Acknowledged:
        """One write; raises StoreError."""
        async with self._turn:
            number = next(self._numbers)
            name, old = f"w{number}", f"w{number - KEPT}"
            view = self.keyspace.view
            writes = (Put(view + keys.router(name), _RECORD), Delete(view + keys.router(old)))
            revision = (await self.store.commit((), writes)).revision
            self.acknowledged[name] = done = Acknowledged(revision, time.monotonic())
            return done


@dataclass(slots=True)
class Witness:
    """A follower's subscriber that remembers what it was told of the writer's routers."""

    joined: dict[str, Told] = field(default_factory=dict)
    joins: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    leaps: list[tuple[int, int, float]] = field(default_factory=list)
    newest: str = ""
    backwards: int = 0
    _revision: int = 0

    def __call__(self, events: tuple[Event, ...], topology: Topology) -> None:
        now = time.monotonic()
        if any(event.coalesced for event in events):
            another_history = topology.revision < self._revision
            self.leaps.append((0 if another_history else self._revision, topology.revision, now))
        elif topology.revision <= self._revision:
            self.backwards += 1
        self._revision = topology.revision
        for event in events:
            if isinstance(event, RouterJoined):
                self.joins[event.router_id] += 1
                self.joined.setdefault(event.router_id, Told(event.revision, event.coalesced, now))
                self.newest = event.router_id
            elif isinstance(event, RouterLost):
                self.losses[event.router_id] += 1

    def leapt_over(self, revision: int) -> float | None:
        """When a coalesced change told everything up to ``revision``; None if none did."""
        return next((at for before, after, at in self.leaps if before < revision <= after), None)


@dataclass(frozen=True, slots=True)
class Balance:
    """What the two have in common. ``late_s`` is the longest time from a write's answer to its event."""

    written: int
    lost: int
    duplicated: int
    coalesced: int
    late_s: float


def balance(acknowledged: dict[str, Acknowledged], witness: Witness) -> Balance:
    """Judge every acknowledged write.

    It is lost unless told at its own revision, told by a coalesced change, or leapt over by one; a name that joins or
    leaves twice is duplicated.
    """
    lost = coalesced = copies = 0
    late_s = 0.0
    for name, write in acknowledged.items():
        told = witness.joined.get(name)
        told_at = witness.leapt_over(write.revision) if told is None else told.at
        if told_at is None or (told is not None and not told.coalesced and told.revision != write.revision):
            lost += 1
            continue
        late_s = max(late_s, told_at - write.at)
        coalesced += told is None or told.coalesced
        copies += max(0, witness.joins[name] - 1) + max(0, witness.losses[name] - 1)
    return Balance(len(acknowledged), lost, copies + witness.backwards, coalesced, late_s)


@dataclass(slots=True)
class Account:
    """``admin`` is the writer's store, which it reaches by a way that no fault is put on; ``follower`` tells ``witness``."""

    admin: Store
    keyspace: Keyspace
    follower: Follower
    witness: Witness
    writer: Writer

    @classmethod
    def of(cls, admin: Store, keyspace: Keyspace, follower: Follower) -> Self:
        """For a follower that has told nothing yet."""
        witness = Witness()
        follower.subscribe(witness)
        return cls(admin, keyspace, follower, witness, Writer(admin, keyspace))

    async def warm_up(self) -> None:
        """Return once the writer runs and is followed."""
        await eventually(lambda: len(self.witness.joined) > WARM, WITHIN_S, "everything at work")

    async def goes_on(self, since: float) -> None:
        """Return once a write acknowledged after ``since`` is told."""

        def told() -> bool:
            write = self.writer.acknowledged.get(self.witness.newest)
            return write is not None and write.at >= since

        await eventually(told, WITHIN_S, "a later write is told")

    async def catch_up(self) -> None:
        """Stop writing; return once all that was written is told."""
        self.writer.paused = True
        last = await eventually(self._last_write, WITHIN_S, "the store takes a write")
        await self.follower.wait_until(lambda view: view.revision >= last, WITHIN_S)

    async def write_beyond(self, revision: int) -> None:
        """Write until the store is past ``revision``."""

        async def is_beyond() -> bool:
            return await self._last_write() > revision

        await eventually(is_beyond, WITHIN_S, "the revision is overtaken")

    async def start_afresh(self) -> None:
        """Catch up and judge so far; what follows is judged by itself: its revisions may be another history's."""
        await self.catch_up()
        so_far = balance(self.writer.acknowledged, self.witness)
        assert (so_far.lost, so_far.duplicated) == (0, 0)
        self.writer.acknowledged.clear()
        for counted in (self.witness.joined, self.witness.joins, self.witness.losses, self.witness.leaps):
            counted.clear()

    async def close(self) -> Balance:
        """Catch up, see that the view is what a fresh list tells, and judge."""
        await self.catch_up()
        await eventually(self._view_is_the_stores, WITHIN_S, "the view equals a fresh list")
        return balance(self.writer.acknowledged, self.witness)

    async def _last_write(self) -> int:
        """The revision of one more write; 0 when it failed."""
        try:
            return (await self.writer.write()).revision
        except StoreError:
            return 0

    async def _view_is_the_stores(self) -> bool:
        snapshot = await self.admin.list(self.keyspace.view)
        listed = {key.removeprefix(self.keyspace.view): stored for key, stored in snapshot.entries.items()}
        view = self.follower.topology
        return build(listed, view.revision) == view
