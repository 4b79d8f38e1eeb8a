"""The supervisor of a group's members on this machine: holds their slots, keeps their processes.

What it does next is decided in :mod:`pdcore.group.control.keeping`; here it is only done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock
from pdcore.errors import LeaseGone, PdcoreError, StoreError
from pdcore.group.control import keeping
from pdcore.group.control.backoff import Exits
from pdcore.group.control.following import GroupFollower
from pdcore.group.control.keeping import ChildSeen, Claim, Own, Release, Say, Spawn, Stop
from pdcore.group.control.members import Member
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import SlotWord
from pdcore.group.control.writing import GroupWriter
from pdcore.group.launch.child import Child, Grace, running
from pdcore.group.launch.diagnosis import Diagnosis
from pdcore.group.launch.group_processes import Processes, urls_of
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.members import HOST
from pdcore.group.launch.members import Member as Process
from pdcore.group.launch.membership import Membership
from pdcore.registry.lease import HeldLease, retry_after_s
from pdcore.registry.store import LeaseId, Store

LEASE_TTL_S: Final = 10
TICK_S: Final = 0.5
LEAVE_S: Final = 3.0
CONNECT_S: Final = 2.0

log = telemetry.logger(__name__)


@dataclass(slots=True)
class _Run:
    """One process of ours. ``over`` is set when it has ended or shall; ``done`` when nothing of it is left."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    status: int | None = None
    pid: int | None = None
    url: str = ""

    def stop(self) -> None:
        """Ask for its end."""
        self.stopping = True
        self.over.set()

    async def wait_exited(self, child: Child) -> None:
        """Note by itself how it ends."""
        self.status = await child.wait_exited()
        self.over.set()


class Keeper:
    """Keeps members while :meth:`keeping` lasts; leaving ends routers first, then everybody, then gives the slots back.

    Mutable: ``_runs`` (who runs), ``_exits`` and ``_whys`` (how members ended, see :class:`~keeping.Own`).
    """

    def __init__(
        self,
        name: str,
        store: Store,
        writer: GroupWriter,
        follower: GroupFollower,
        processes: Processes,
        log: PrefixedLog,
        grace: Grace,
        clock: Clock,
    ) -> None:
        self._name = name
        self._store = store
        self._writer = writer
        self._follower = follower
        self._processes = processes
        self._log = log
        self._grace = grace
        self._clock = clock
        self._lease = HeldLease(store, LEASE_TTL_S, clock=clock, jitter=random.random)
        self._runs: dict[Member, _Run] = {}
        self._exits: dict[Member, Exits] = {}
        self._whys: dict[Member, str] = {}

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Keep the group's members while the block lasts."""
        try:
            async with asyncio.TaskGroup() as tasks, running_beside(self._keep_lease()):
                try:
                    async with running_beside(self._keep(tasks)):
                        yield
                finally:
                    await self._end_all()
        finally:
            await self._give_back()

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        told = ""
        while True:
            try:
                await self._look(tasks)
                told = ""
            except StoreError as error:
                if str(error) != told:
                    self._log.say(f"the members run on without their store: {error}")
                told = str(error)
            await self._follower.wait_news(TICK_S)

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        seen = self._follower.seen()
        if seen is None:
            return
        writes: list[Claim | Release | Say] = []
        for task in keeping.next_tasks(seen, self._own()):
            match task:
                case Spawn(member):
                    self._spawn(tasks, seen, member)
                case Stop(member, why):
                    self._log.say(f"{member.name_in(seen.group)} ends: {why}")
                    self._runs[member].stop()
                case _:
                    writes.append(task)
        # Only now is anything awaited: until here the runs are those that the decision was made on.
        for write in writes:
            await self._write(seen, write)

    def _spawn(self, tasks: asyncio.TaskGroup, seen: Seen, member: Member) -> None:
        """Start ``member``; what cannot be started here is an exit as if it had said so itself."""
        try:
            process = self._processes.of(seen, member)
        except PdcoreError as wrong:
            self._note_exit(member, member.name_in(seen.group), keeping.CANNOT_START, 0.0, str(wrong))
            return
        run = self._runs[member] = _Run()
        tasks.create_task(self._run(member, process, run), name=f"keep {member.path}")

    async def _write(self, seen: Seen, task: Claim | Release | Say) -> None:
        lease = self._lease.id
        if lease is None:
            return
        try:
            match task:
                case Claim(members):
                    await self._writer.claim(seen, members, SlotWord(supervisor=self._name), lease)
                case Release(member):
                    if await self._writer.release(member, seen.slots[member]):
                        self._exits.pop(member, None)
                        self._whys.pop(member, None)
                        self._processes.give_back(seen.group, member)
                case Say(member, word):
                    await self._writer.say(member, seen.slots[member], word, lease)
        except LeaseGone:
            self._lose_lease()

    def _own(self) -> Own:
        children = {
            member: ChildSeen(phase="stopping" if run.stopping else "running", pid=run.pid, url=run.url)
            for member, run in self._runs.items()
        }
        return Own(supervisor=self._name, children=children, exits=self._exits, whys=self._whys)

    async def _run(self, member: Member, process: Process, run: _Run) -> None:
        """One run of ``member``, until it ends or is asked to."""
        diagnosis, began = Diagnosis(), self._clock.now()

        def on_line(text: str) -> None:
            diagnosis.line(text)
            self._log.line(process.name, text)

        try:
            async with running(process, on_line, self._grace) as child:
                run.pid = child.pid
                self._follower.news.set()
                async with (
                    running_beside(run.wait_exited(child)),
                    running_beside(self._wait_serving(process.port, run)),
                    running_beside(self._tell_members(process)),
                ):
                    await run.over.wait()
        finally:
            if run.status is not None and not run.stopping:
                lived_s = self._clock.now() - began
                self._note_exit(member, process.name, run.status, lived_s, diagnosis.sentence(run.status))
            del self._runs[member]
            run.done.set()
            self._follower.news.set()

    async def _wait_serving(self, port: int | None, run: _Run) -> None:
        """Note that somebody listens on ``port``, of a member that tells nobody itself."""
        while port is not None and not run.url:
            try:
                async with asyncio.timeout(CONNECT_S):
                    _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                run.url = f"http://{HOST}:{port}"
                self._follower.news.set()
            except (OSError, TimeoutError):
                await self._clock.sleep(TICK_S)

    async def _tell_members(self, process: Process) -> None:
        """Keep a router without a store told of the group's members."""
        if process.told_at is not None:
            await Membership(process.told_at, self._members, self._clock).keep()

    def _members(self) -> dict[str, str]:
        """Where members answer that do not register, and the role of each."""
        seen = self._follower.seen()
        return {} if seen is None else {url: role for role, url in urls_of(seen)}

    def _note_exit(self, member: Member, name: str, status: int, lived_s: float, why: str) -> None:
        before = self._exits.get(member, Exits())
        now = self._clock.wall()
        exits = self._exits[member] = before.after(now, status=status, lived_s=lived_s)
        how = f"was ended by signal {-status}" if status < 0 else f"exited with {status}"
        self._whys[member] = why or how
        wait_s = max(0.0, exits.again_at - now)
        again = "now" if wait_s == 0 else f"in {wait_s:.0f} s"
        cause = f" ({why})" if why else ""
        self._log.say(f"{name} {how}{cause}; it is started again {again}")

    async def _end_all(self) -> None:
        """Routers before the engines they send to."""
        for routers in (True, False):
            runs = [run for member, run in self._runs.items() if (member.role == "router") == routers]
            for run in runs:
                run.stop()
            for run in runs:
                await run.done.wait()

    async def _keep_lease(self) -> None:
        failures = 0
        while True:
            try:
                await self._renew()
                failures = 0
                await self._clock.sleep(max(0.0, self._lease.due - self._clock.now()))
            except StoreError as error:
                failures += 1
                log.debug("the lease of the slots is not renewed", reason=str(error))
                await self._clock.sleep(retry_after_s(failures, random.random()))

    async def _renew(self) -> None:
        if self._lease.is_due(self._clock.now()) and not await self._lease.renew():
            self._lose_lease()
        self._take(await self._lease.ensure())

    def _take(self, lease: LeaseId) -> None:
        if self._follower.lease != lease:
            self._follower.lease = lease
            self._follower.news.set()

    def _lose_lease(self) -> None:
        """Our slots are gone or go; whoever runs is claimed again, with another lease."""
        self._log.say("the lease of the slots is lost; claiming them again")
        self._lease.forget()
        self._follower.lease = None

    async def _give_back(self) -> None:
        if self._lease.id is None:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._store.revoke(self._lease.id)
        except (StoreError, TimeoutError) as error:
            log.info("the slots are left to expire", reason=str(error))
