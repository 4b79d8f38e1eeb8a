"""Follows what a group's controller and supervisor look at: the view, and the slots, which lie beside it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock
from pdcore.errors import StoreError
from pdcore.group.control import slots
from pdcore.group.control.generation import Generation, generation_of
from pdcore.group.control.members import Member
from pdcore.group.control.plan import Plan, Unreadable, plan_of
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import Slot
from pdcore.registry.follower import Follower
from pdcore.registry.lease import retry_after_s
from pdcore.registry.store import LeaseId, Revision, Store, Stored
from pdcore.topology import keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Group, Topology

log = telemetry.logger(__name__)


class SlotsFollower:
    """Keeps :attr:`held` equal to the keys below ``prefix`` while :meth:`follow` runs.

    ``prefix`` is where one group's slots are. On any doubt it lists again. Mutable: ``held``, ``synced``.
    """

    def __init__(self, store: Store, prefix: str, on_change: Callable[[], None], clock: Clock) -> None:
        self._store = store
        self._prefix = prefix
        self._on_change = on_change
        self._clock = clock
        self.held: dict[str, Stored] = {}
        self.synced = False

    async def follow(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            try:
                await self._follow()
            except StoreError as error:
                failures += 1
                log.debug("not following the slots", reason=str(error))
            await self._clock.sleep(retry_after_s(max(1, failures), random.random()))

    async def _follow(self) -> None:
        listed = await self._store.list(self._prefix)
        self.held = dict(listed.entries)
        self.synced = True
        self._on_change()
        async with self._store.watch(self._prefix, listed.revision) as messages:
            async for message in messages:
                if isinstance(message, Revision):
                    self._apply(message)

    def _apply(self, revision: Revision) -> None:
        for change in revision.changes:
            if change.stored is None:
                self.held.pop(change.key, None)
            else:
                self.held[change.key] = change.stored
        self._on_change()


class GroupFollower:
    """What there is to see of one group; ``news`` is set by every change of it."""

    def __init__(self, store: Store, keyspace: Keyspace, group: str, clock: Clock) -> None:
        self._keyspace = keyspace
        self._clock = clock
        self.group = group
        self.news = asyncio.Event()
        self.view = Follower(store, keyspace, clock=clock)
        self.slots = SlotsFollower(store, keyspace.members(group), self.news.set, clock)
        self.lease: LeaseId | None = None

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow both while the block lasts."""
        self.view.observe(lambda _: self.news.set())
        async with self.view, running_beside(self.slots.follow()):
            yield

    def seen(self) -> Seen | None:
        """The group as it stands; None while not everything was read, or while there is no such group."""
        topology = self.view.topology
        if not (self.view.synced and self.slots.synced):
            return None
        return seen_in(
            topology,
            self.group,
            slots_of(self._keyspace, self.group, self.slots.held, self.lease),
            self._clock.wall(),
        )

    async def wait_news(self, timeout_s: float) -> None:
        """Return at the next change, or after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.news.wait()
        except TimeoutError:
            pass
        self.news.clear()


def seen_in(topology: Topology, group: str, held: Mapping[Member, Slot], now: float) -> Seen | None:
    """What ``topology`` and the slots show of ``group``; None while it has no plan that can be read."""
    found, entry = topology.groups.get(group), topology.entry(keys.desired(group))
    plan = None if found is None else readable_plan(found)
    if found is None or plan is None or entry is None:
        return None
    return Seen(
        group=group,
        plan=plan,
        revision=entry.mod_revision,
        generations=generations_of(found),
        slots=held,
        topology=topology,
        now=now,
    )


def readable_plan(found: Group) -> Plan | None:
    """The plan in the group's record; None, and a line in the log, for one that nobody may act on."""
    if found.desired is None:
        return None
    try:
        return plan_of(found.desired)
    except Unreadable as wrong:
        log.error("the group's plan cannot be read", group=found.group, reason=str(wrong))
        return None


def generations_of(found: Group) -> dict[int, Generation]:
    """Every generation that members can be started from."""
    read = {number: generation_of(record) for number, record in found.generations.items()}
    return {number: generation for number, generation in read.items() if generation is not None}


def slots_of(
    keyspace: Keyspace, group: str, held: Mapping[str, Stored], lease: LeaseId | None
) -> dict[Member, Slot]:
    """The slots among ``held``; ours are those on ``lease``."""
    found = ((slots.member_of(keyspace, group, name), stored) for name, stored in held.items())
    return {
        member: Slot(
            word=slots.read(stored.value),
            mod_revision=stored.mod_revision,
            mine=lease is not None and stored.lease == lease,
        )
        for member, stored in found
        if member is not None
    }
