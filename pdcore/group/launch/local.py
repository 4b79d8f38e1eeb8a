"""The supervisor of one machine: keeps members running, ends them in order.

Members are kept inside ``async with supervisor.keeping(...)``; blocks nest, and leaving one ends its members before the
block around it ends its own. So a router goes before the engines it sends to, and both before the store, whatever ended
the block: the end of its body, Ctrl-C, or a member that cannot work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pdcore.clock import Clock, SystemClock
from pdcore.errors import PdcoreError
from pdcore.group.launch import restart
from pdcore.group.launch.child import Grace, running
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.members import Member


class MemberGaveUp(PdcoreError):
    """A member says that what it was given cannot work. ``line`` is how it put that."""

    def __init__(self, name: str, status: int, line: str | None) -> None:
        super().__init__(f"{name} exited with {status}: {line or 'it wrote nothing'}")
        self.name = name
        self.status = status
        self.line = line


class Supervisor:
    """Restarts members that exit by themselves; see :mod:`pdcore.group.launch.restart` for when."""

    def __init__(self, log: PrefixedLog, grace: Grace, clock: Clock | None = None) -> None:
        self._log = log
        self._grace = grace
        self._clock = clock or SystemClock()

    @asynccontextmanager
    async def keeping(self, members: Sequence[Member]) -> AsyncIterator[None]:
        """Keep ``members`` running inside the block. Raises a group with :class:`MemberGaveUp` when one gives up."""
        async with asyncio.TaskGroup() as tasks:
            kept = [tasks.create_task(self._keep(member), name=f"keep {member.name}") for member in members]
            try:
                yield
            finally:
                for task in kept:
                    task.cancel()

    async def _keep(self, member: Member) -> None:
        failures = 0
        while True:
            started = self._clock.now()
            async with running(member, partial(self._log.line, member.name), self._grace) as child:
                status = await child.wait_exited()
                lived_s = self._clock.now() - started
            verdict = restart.decide(status, lived_s=lived_s, failures=failures)
            if isinstance(verdict, restart.GiveUp):
                raise MemberGaveUp(member.name, verdict.status, self._log.last(member.name))
            self._log.say(f"{member.name} {_ending(status)}; starting it again {_when(verdict.delay_s)}")
            failures = verdict.failures
            await self._clock.sleep(verdict.delay_s)


def _ending(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"exited with {status}"


def _when(delay_s: float) -> str:
    return "now" if delay_s == 0 else f"in {delay_s:g} s"
