"""The registrar's loop: one step after the other, everything that touches the store.

A step takes the claim, renews the lease, and makes the store agree with what the parent wants and what the
processes are (:mod:`pdcore.registry.desired`). It starts from a fresh read, so a step that failed, in whatever state
it left the store, is simply taken again. Events (a new wish, an exit, a beat after silence) only mark that there is
something to do. No trouble with the store ever ends the loop while the parent is there.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import Any, Final

import msgspec

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.errors import LeaseGone, StoreError
from pdcore.registry import desired, machine
from pdcore.registry.claiming import Claiming
from pdcore.registry.desired import Fence, Presence, Wanted
from pdcore.registry.instance_keys import InstanceKeys
from pdcore.registry.lease import HeldLease, Jitter, retry_after_s
from pdcore.registry.processes import Processes
from pdcore.registry.registrar_messages import PARENT, Leave, Start, Status, Want
from pdcore.registry.seats import Seat
from pdcore.registry.store import LeaseId, Store, Stored
from pdcore.topology.keys import Keyspace

log = telemetry.logger(__name__)

SPREAD_PER_TTL: Final = 0.05
LONGEST_SPREAD_S: Final = 0.5
"""Registrations that lost their leases together come back spread over this long."""
PARENT_ENDS_S: Final = 5.0
"""How long a parent whose ranks were killed by order may take to end by itself."""
_NOTHING: Final = Want(version=0, instance=None, ranks={})


class Upkeep:
    """Keeps one incarnation registered until :meth:`run` returns. ``wake`` is set by whoever has news.

    ``status`` is what to tell the parent; ``changed`` is set with every change of it.

    Mutable: ``_want`` (the one desired record, swapped whole), ``_leave`` with ``_give_up_at``, ``_dirty`` (the store
    may disagree), ``_check_at`` (next keepalive), ``_failures`` with ``_retry_at`` (after failed steps), ``_order``
    (as last read) with ``_kill_parent_at`` (once it was one to end), ``_done``.
    """

    def __init__(
        self,
        start: Start,
        store: Store,
        processes: Processes,
        *,
        wake: asyncio.Event,
        clock: Clock,
        jitter: Jitter,
    ) -> None:
        spec = start.spec
        fence = Fence(
            keyspace=Keyspace(cluster=spec.cluster),
            instance_id=spec.instance_id,
            incarnation=spec.incarnation,
        )
        self._ttl_s = spec.ttl_s
        self._runtime_dir = spec.runtime_dir
        self._store = store
        self._processes = processes
        self._clock = clock
        self._jitter = jitter
        self._keys = InstanceKeys(fence, store, by=f"registrar on {machine.machine()}")
        self._claiming = Claiming(start, store, self._keys, clock=clock, jitter=jitter)
        self._lease = HeldLease(store, spec.ttl_s, clock=clock, jitter=jitter)
        self._seat = Seat(fence, store, patience_s=spec.ttl_s / 3, clock=clock, jitter=jitter)
        self.status = Status(claimed=start.claimed, predecessor=start.predecessor)
        self._want = _NOTHING
        self._leave: Leave | None = None
        self._give_up_at: float | None = None
        self._order: Stored | None = None
        self._kill_parent_at: float | None = None
        self._dirty = True
        self._done = False
        self._check_at = float("-inf")
        self._failures = 0
        self._retry_at = float("-inf")
        self._wake = wake
        self.changed = asyncio.Event()

    def want(self, want: Want) -> None:
        """Replace the desired record. A rank that appears in it was alive a moment ago."""
        for member, value in want.ranks.items():
            if value is not None and self._want.ranks.get(member) is None:
                self._processes.seen(member)
        self._want = want
        self._dirty = True
        self._wake.set()

    def leave(self, leave: Leave) -> None:
        """Withdraw, then end; without success after the given time, end all the same."""
        self._leave = leave
        self._give_up_at = self._clock.now() + leave.timeout_s
        self._dirty = True
        self._wake.set()

    async def run(self) -> None:
        """Returns when the parent has left or died and that is told. Raises Superseded, Refused."""
        try:
            while not self._done:
                await self.attempt()
                self._notice_parent()
                if not self._done:
                    await self._pause()
            await self._end_lease()
        finally:
            if self._parent_exited:
                log.info("parent is gone; ranks killed", ranks=self._processes.kill_ranks())
                if self._runtime_dir is not None:
                    shutil.rmtree(self._runtime_dir, ignore_errors=True)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to keep."""
        return self._done

    @property
    def _parent_exited(self) -> bool:
        return PARENT in self._processes.exited

    async def attempt(self) -> None:
        """One step of :meth:`run`. A StoreError is noted and the step is due again. Raises Superseded, Refused."""
        self._wake.clear()  # before looking: news that comes during the step calls for another one
        try:
            asked = await self._step()
        except LeaseGone:
            await self._lose_lease()
        except StoreError as error:
            self._failures += 1
            self._retry_at = self._clock.now() + retry_after_s(self._failures, self._jitter())
            self._note_store(str(error))
        else:
            self._failures = 0
            if asked:
                self._note_store(None)

    async def _step(self) -> bool:
        """Do what is due; whether that took the store, so that its answers say something about it."""
        asked = False
        if self._processes.look():
            self._dirty = True
        if self._is_over() and not self._claiming.claimed:
            self._tell(left=True)
            self._done = True
        elif self._clock.now() >= self._check_at:
            await self._check()
            asked = True
        if self._dirty and not self._done:
            await self._settle()
            asked = True
        return asked

    async def _check(self) -> None:
        """Every third of the TTL: keep the leases, and see whether everything still stands."""
        now = self._clock.now()
        if self._lease.id is not None and not await self._lease.renew():
            raise LeaseGone("the registration lease is gone")
        await self._claiming.renew(now)
        if not self._dirty and not await self._keys.confirm(self._wanted(), self._order, self._seat.held):
            log.info("keys differ from what they should be, or an order or a seat does; reading again")
            self._dirty = True
        self._check_at = now + self._ttl_s / 3 * (0.9 + self._jitter() / 10)

    async def _settle(self) -> None:
        """Make the store agree. Stays dirty when it failed, or when something happened meanwhile."""
        self._dirty = False
        settled = False
        try:
            settled = await self._agree()
        finally:
            self._dirty = self._dirty or not settled

    async def _agree(self) -> bool:
        found = await self._keys.read()
        if not await self._claiming.secure(found):
            return False
        self._tell(claimed=True, predecessor=self._claiming.predecessor)
        self._obey(found.order)
        lease = await self._prepare()
        version, over, wanted = self._want.version, self._is_over(), self._wanted()
        revision = await self._keys.repair(found, wanted, lease)
        if revision is None:
            return False
        self._tell(version=version, revision=revision, withdrawn=self._withdrawn(), left=over)
        self._done = over
        return True

    async def _prepare(self) -> LeaseId | None:
        """The lease for what is to stand, and a seat under it for the instance."""
        wanted = self._wanted()
        if wanted.entries:
            await self._seat.hold(wanted, await self._lease.ensure())
        return self._lease.id

    def _obey(self, order: Stored | None) -> None:
        """An order to end kills at once: whoever gave it may wait for the memory of these processes."""
        self._order = order
        if self._kill_parent_at is None and self._keys.fence.meaning(order) == "end":
            self._kill_parent_at = self._clock.now() + PARENT_ENDS_S
            log.error("ordered to end; ranks killed", ranks=self._processes.kill_ranks())

    def _wanted(self) -> Wanted:
        presence = Presence(
            exited=self._processes.exited,
            silent=self._processes.silent,
            leaving=None if self._leave is None else self._leave.reason,
            ended=self._kill_parent_at is not None,
        )
        return desired.wanted(self._keys.fence.instance_id, self._seat.marked(self._want), presence)

    def _withdrawn(self) -> tuple[str, ...]:
        return tuple(sorted((self._processes.exited | self._processes.silent) & {PARENT, *self._want.ranks}))

    def _is_over(self) -> bool:
        return self._leave is not None or self._parent_exited

    def _notice_parent(self) -> None:
        """With the parent gone nobody may go on; what cannot be withdrawn by then, the lease's end withdraws."""
        now = self._clock.now()
        if self._kill_parent_at is not None and now >= self._kill_parent_at:
            self._processes.kill_parent()
        if self._parent_exited or self._kill_parent_at is not None:
            self._processes.kill_ranks()
        if self._parent_exited:
            self._give_up_at = self._give_up_at or now + self._ttl_s
        if self._give_up_at is not None and now >= self._give_up_at:
            self._done = True

    async def _lose_lease(self) -> None:
        self._lease.forget()
        self._dirty = True
        if self._is_over():
            log.info("lease lost while leaving")
            return
        log.warning("lease lost; registering again")
        await self._clock.sleep(self._jitter() * min(LONGEST_SPREAD_S, self._ttl_s * SPREAD_PER_TTL))

    async def _pause(self) -> None:
        """Wait for an event, the next keepalive, the next silence or the next try."""
        try:
            async with asyncio.timeout(self._idle_s()):
                await self._wake.wait()
        except TimeoutError:
            return

    def _idle_s(self) -> float:
        now = self._clock.now()
        if self._failures:
            return max(0.0, self._retry_at - now)
        if self._dirty:
            return 0.0
        others = (self._processes.next_silence(), None if self._parent_exited else self._kill_parent_at)
        return max(0.0, min((self._check_at, *(at for at in others if at is not None))) - now)

    async def _end_lease(self) -> None:
        if self._lease.id is None:
            return
        await self._seat.leave()
        try:
            await self._store.revoke(self._lease.id)
        except StoreError as error:
            log.info("lease left to expire", reason=str(error))

    def _note_store(self, error: str | None) -> None:
        """Tell and log a change of state, not every failure."""
        if (error is None) == (self.status.store_error is None):
            return
        if error is None:
            log.info("store answers again")
        else:
            log.warning("store does not take our registration; trying on", reason=error)
        self._tell(store_error=error)

    def _tell(self, **changes: Any) -> None:
        status = msgspec.structs.replace(self.status, **changes)
        if status != self.status:
            self.status = status
            self.changed.set()
