"""Taking and keeping the claim: asks about the incumbent, decides by :mod:`pdcore.registry.claims`, commits."""

from __future__ import annotations

import os
from typing import Final

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.errors import PdcoreError, Superseded
from pdcore.registry import claims, machine
from pdcore.registry.claims import Incumbent, Refuse, Take
from pdcore.registry.instance_keys import Found, InstanceKeys
from pdcore.registry.lease import HeldLease, Jitter
from pdcore.registry.probe import answering_incarnation
from pdcore.registry.registrar_messages import Start
from pdcore.registry.store import Store
from pdcore.topology import codec
from pdcore.topology.records import InstanceRecord

log = telemetry.logger(__name__)

CLAIM_TTL_S: Final = 24 * 3600
PROBE_S: Final = 0.5


class Refused(PdcoreError):
    """A living incumbent holds the id; the sentence is for the person who started this process."""


class Claiming:
    """The claim of one incarnation. ``claimed`` once taken, ``predecessor`` the incarnation it was taken from."""

    def __init__(
        self, start: Start, store: Store, keys: InstanceKeys, *, clock: Clock, jitter: Jitter
    ) -> None:
        self._take_over = start.spec.take_over
        self._own_pids = frozenset({start.parent_pid, os.getpid()})
        self._store = store
        self._keys = keys
        self._lease = HeldLease(store, CLAIM_TTL_S, clock=clock, jitter=jitter)
        self.claimed = start.claimed
        self.predecessor = start.predecessor

    async def secure(self, found: Found) -> bool:
        """Whether the claim in ``found`` is ours; if not but it could be, take it and have the caller read again.

        Raises Superseded, Refused, StoreError.
        """
        fence = self._keys.fence
        standing = claims.standing(found.claim, fence.incarnation, self.predecessor)
        if standing == "held":
            self._keep(found)
            return True
        if not self.claimed:
            await self._take(found, await self._decide(found))
            return False
        if standing == "superseded" and found.claim is not None:
            raise Superseded(fence.instance_id, claims.holder_of(found.claim))
        log.warning("claim vanished; taking it again", standing=standing)
        await self._take(found, Take())
        return False

    async def renew(self, now: float) -> None:
        """Keep the claim's lease alive when that is due; a lost one shows as a missing claim."""
        if self._lease.is_due(now):
            await self._lease.renew()

    def _keep(self, found: Found) -> None:
        self.claimed = True
        if self._lease.id is None and found.claim is not None and found.claim.lease is not None:
            self._lease.adopt(found.claim.lease)

    async def _decide(self, found: Found) -> Take:
        incumbent = await self._incumbent(found)
        decision = claims.decide(self._keys.fence.instance_id, incumbent, take_over=self._take_over)
        if isinstance(decision, Refuse):
            raise Refused(decision.sentence)
        return decision

    async def _incumbent(self, found: Found) -> Incumbent | None:
        stored = found.entries.get(self._keys.fence.instance_key)
        record = None if stored is None else codec.decode(self._keys.fence.instance_key, stored.value)
        if not isinstance(record, InstanceRecord):
            record = None
        holder = None if record is None else record.incarnation
        if found.claim is not None:
            holder = claims.holder_of(found.claim)
        if holder is None or holder == self._keys.fence.incarnation:
            return None
        if record is None or record.incarnation != holder:
            return Incumbent(incarnation=holder, record=None, answers=False, alive=None)
        return Incumbent(
            incarnation=holder,
            record=record,
            answers=await answering_incarnation(record.url, PROBE_S) == holder,
            alive=claims.is_process_alive(
                record,
                boot_id=machine.boot_id(),
                started=machine.process_started(record.pid),
                own_pids=self._own_pids,
            ),
        )

    async def _take(self, found: Found, take: Take) -> None:
        """One compare-and-swap; losing it only means that somebody else was quicker."""
        self._lease.forget()
        leftovers = () if take.departed is None else found.entries.keys() - {self._keys.fence.departure_key}
        transaction = claims.taking(
            self._keys.fence,
            found.claim,
            leftovers,
            take,
            order=found.order,
            claim_lease=await self._lease.ensure(),
            departure_lease=await self._keys.departure_lease() if leftovers else None,
            by=self._keys.by,
        )
        committed = await self._store.commit(transaction.conditions, transaction.writes)
        if not committed.succeeded:
            return
        self._note_taken(found, take)
        if found.claim is not None and found.claim.lease is not None:
            await self._store.revoke(found.claim.lease)  # its only key hangs on our lease now

    def _note_taken(self, found: Found, take: Take) -> None:
        if not self.claimed and found.claim is not None:
            self.predecessor = claims.holder_of(found.claim)
        self.claimed = True
        log.info("claim taken", predecessor=take.departed)
