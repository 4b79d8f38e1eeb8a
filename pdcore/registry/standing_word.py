"""A value that stands in the keyspace for as long as the process that says it lives, on a lease of its own.

It stands while ``given`` holds. Without that nobody is fenced off: of two processes that say something under one key, the
one that said it last is heard.
"""

from __future__ import annotations

import random

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.errors import LeaseGone, StoreError
from pdcore.registry.lease import HeldLease, retry_after_s
from pdcore.registry.store import Condition, Put, Store

log = telemetry.logger(__name__)


class StandingWord:
    """Run :meth:`keep` as a task, and :meth:`withdraw` at the end."""

    def __init__(
        self,
        store: Store,
        key: str,
        value: bytes,
        *,
        ttl_s: int,
        clock: Clock,
        given: tuple[Condition, ...] = (),
    ) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._given = given
        self._lease = HeldLease(store, ttl_s, clock=clock, jitter=random.random)
        self._clock = clock

    async def keep(self) -> None:
        """Until cancelled, or until ``given`` does not hold."""
        failures = 0
        while True:
            try:
                if not await self._step():
                    return
                failures = 0
                await self._clock.sleep(max(0.0, self._lease.due - self._clock.now()))
            except LeaseGone:
                self._lease.forget()
            except StoreError as error:
                failures += 1
                log.debug("word does not stand yet", key=self._key, reason=str(error))
                await self._clock.sleep(retry_after_s(failures, random.random()))

    async def _step(self) -> bool:
        """Renew the lease and see that the key is right; False when that may not be."""
        if self._lease.is_due(self._clock.now()):
            await self._lease.renew()
        lease = await self._lease.ensure()
        stored = await self._store.get(self._key)
        if stored is not None and stored.value == self._value and stored.lease == lease:
            return True
        return (await self._store.commit(self._given, (Put(self._key, self._value, lease),))).succeeded

    async def withdraw(self) -> None:
        """The word goes with its lease, now or when that ends."""
        if self._lease.id is None:
            return
        try:
            await self._store.revoke(self._lease.id)
        except StoreError as error:
            log.info("word left to expire", key=self._key, reason=str(error))
