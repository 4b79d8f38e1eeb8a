"""A router's place in the keyspace, kept by a task of the router itself.

A router has no processes to outlive it and no claim: its id names its address, which only one process can listen on.
The key hangs on one lease, is compared at every keepalive and put again when it is missing or was changed; losing
the lease means another lease and the same record.
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Final, Self

from pdcore import telemetry
from pdcore.clock import Clock, SystemClock
from pdcore.errors import ConfigError, LeaseGone, StoreError
from pdcore.registry.lease import HeldLease, retry_after_s
from pdcore.registry.store import Absent, Condition, LeaseId, ModRevisionIs, Put, Store
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import RouterRecord

log = telemetry.logger(__name__)

LEAVE_S: Final = 3.0


class RouterRegistration:
    """Keeps ``routers/{router_id}`` for the length of an ``async with``; leaving removes it.

    ``store`` is open already and stays the caller's. Trouble with it shows in ``store_error`` and heals by itself.
    Mutable: ``_value`` (the desired record), ``_standing`` (what the store was last seen to hold), ``store_error``.
    """

    def __init__(
        self, store: Store, keyspace: Keyspace, router_id: str, *, ttl_s: int, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._name = keys.router(router_id)
        self._key = keyspace.view + self._name
        self._ttl_s = ttl_s
        self._clock = clock or SystemClock()
        self._lease = HeldLease(store, ttl_s, clock=self._clock, jitter=random.random)
        self._value: bytes | None = None
        self._standing: bytes | None = None
        self._news = asyncio.Event()
        self._stood = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._keeping: asyncio.Task[None] | None = None
        self.store_error: str | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._keeping = self._tasks.create_task(self._keep(), name="router registration")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        # An exception of the block leaves as it is, not in a group; only a cancellation may be the group's own.
        cancelled = isinstance(error, asyncio.CancelledError)
        try:
            await self._tasks.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))
        finally:
            await self._withdraw()

    @property
    def lease(self) -> LeaseId | None:
        """The lease that other keys of this router may hang on; None while there is none."""
        return self._lease.id

    @property
    def is_registered(self) -> bool:
        """Whether the record put last is what the store was last seen to hold."""
        return self._value is not None and self._standing == self._value

    def put(self, record: RouterRecord) -> None:
        """Replace the desired record. Raises ConfigError when readers would reject it."""
        value = codec.encode(record)
        read = codec.decode(self._name, value)
        if isinstance(read, codec.Rejected):
            raise ConfigError(f"{self._name} cannot be registered: {read.reason}")
        self._value = value
        self._stood.clear()
        self._news.set()

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once the record put last stands. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._stood.wait()

    async def _keep(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            try:
                settled = await self._step()
            except StoreError as error:
                failures += 1
                self._note_store(str(error))
                await self._pause(retry_after_s(failures, random.random()))
                continue
            failures = 0
            self._note_store(None)
            await self._pause(max(0.0, self._lease.due - self._clock.now()) if settled else 0.0)

    async def _step(self) -> bool:
        """Keep the lease and make the key agree; False when somebody wrote it in between."""
        if self._lease.is_due(self._clock.now()) and not await self._lease.renew():
            log.warning("lease lost; registering again")
        if self._value is None:
            return True
        try:
            return await self._agree(self._value)
        except LeaseGone:
            self._lease.forget()
            return False

    async def _agree(self, value: bytes) -> bool:
        lease = await self._lease.ensure()
        stored = await self._store.get(self._key)
        if stored is None or stored.value != value or stored.lease != lease:
            unchanged: Condition = (
                Absent(self._key) if stored is None else ModRevisionIs(self._key, stored.mod_revision)
            )
            committed = await self._store.commit((unchanged,), (Put(self._key, value, lease),))
            if not committed.succeeded:
                return False
            log.info("registered", router=self._name, revision=committed.revision)
        self._standing = value
        if self.is_registered:
            self._stood.set()
        return True

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(min(seconds, self._ttl_s)):
                await self._news.wait()
        except TimeoutError:
            return

    async def _withdraw(self) -> None:
        """The key goes with its lease, now or when that ends."""
        if self._lease.id is None:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._store.revoke(self._lease.id)
        except (StoreError, TimeoutError) as error:
            log.info("registration left to expire", reason=str(error))

    def _note_store(self, error: str | None) -> None:
        """Log a change of state, not every failure."""
        if (error is None) != (self.store_error is None):
            if error is None:
                log.info("store answers again")
            else:
                log.warning("store does not take our registration; trying on", reason=error)
        self.store_error = error
