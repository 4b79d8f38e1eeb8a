"""An imaginary fleet in a real etcd: every instance complete under one lease, kept alive, restarted on demand."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from pdcore.beside import running_beside
from pdcore.errors import LeaseGone
from pdcore.registry.store import Delete, LeaseId, Put, Store
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DepartureRecord, InstanceRecord, RankRecord, Record, Role, State
from tests.support import fleet

RANKS = 16
TTL_S = 60
DEPARTURE_S = 60
AT_ONCE = 16


class Fleet:
    """``size`` instances of :data:`RANKS` ranks, half of them prefill. ``store`` is open."""

    def __init__(self, store: Store, keyspace: Keyspace, size: int) -> None:
        self._store = store
        self._view = keyspace.view
        self._starts = itertools.count(1)
        self._leases: dict[int, LeaseId] = {}
        self._incarnations: dict[int, str] = {}
        self.size = size

    @asynccontextmanager
    async def registered(self) -> AsyncIterator[None]:
        """Everything stands inside the block."""
        async with running_beside(self._keep()):
            await self.each(self.start)
            yield

    async def each(self, act: Callable[[int], Awaitable[None]], at_once: int = AT_ONCE) -> None:
        """``act`` on every instance, ``at_once`` of them at a time."""
        numbers = iter(range(self.size))

        async def one_after_the_other() -> None:
            for number in numbers:
                await act(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one_after_the_other())

    async def start(self, number: int) -> None:
        """A new incarnation, complete and serving in one transaction."""
        await self._begin(number)
        await self._put(number, self._records(number, "serving"))

    async def restart(self, number: int) -> None:
        """Leave with a departure, come back as another incarnation: record, ranks, serving."""
        await self._leave(number)
        await self._begin(number)
        records = self._records(number, "starting")
        own = keys.instance(self.instance_id(number))
        await self._put(number, {own: records.pop(own)})
        await self._put(number, records)
        await self._put(number, {own: self.record(number, "serving")})

    async def serve(self, number: int) -> None:
        """Say that it serves, whatever it said before."""
        await self.say(number, "serving")

    async def say(self, number: int, state: State) -> int:
        """Write the instance's record with ``state``; the revision."""
        return await self._put(number, {keys.instance(self.instance_id(number)): self.record(number, state)})

    def instance_id(self, number: int) -> str:
        """Ids as they are made of role and address."""
        return f"{_role(number)}-{_host(number)}-8000"

    def record(self, number: int, state: State) -> InstanceRecord:
        """The instance's record as its present incarnation writes it."""
        host = _host(number)
        return fleet.instance_record(
            _role(number),
            incarnation=self._incarnations[number],
            url=f"http://{host}:8000",
            bootstrap_host=host if _role(number) == "prefill" else None,
            protocol="bootstrap",
            compat=fleet.compat(kv_heads=RANKS // 2),
            dp_size=2,
            tp_size=RANKS // 2,
            machine=host,
            state=state,
        )

    def _records(self, number: int, state: State) -> dict[str, Record]:
        found = fleet.complete(self.instance_id(number), self.record(number, state), machine=_host(number))
        return {key: _moved(record, number, at) for at, (key, record) in enumerate(found.items())}

    async def _begin(self, number: int) -> None:
        self._incarnations[number] = f"{next(self._starts):032x}"
        self._leases[number] = await self._store.grant(TTL_S)

    async def _put(self, number: int, records: dict[str, Record]) -> int:
        lease = self._leases[number]
        writes = [Put(self._view + key, codec.encode(one), lease) for key, one in records.items()]
        return (await self._store.commit((), tuple(writes))).revision

    async def _leave(self, number: int) -> None:
        departure = DepartureRecord(incarnation=self._incarnations[number], reason="left", by="bench")
        key = self._view + keys.departure(self.instance_id(number))
        gone = [Delete(self._view + key) for key in self._records(number, "serving")]
        why = Put(key, codec.encode(departure), await self._store.grant(DEPARTURE_S))
        await self._store.commit((), (*gone, why))
        await self._store.revoke(self._leases.pop(number))

    async def _keep(self) -> None:
        """Every lease three times per TTL, several at a time: a loaded machine must not lose them."""
        while True:
            began = time.monotonic()
            await self.each(self._renew)
            await asyncio.sleep(max(0.1, TTL_S / 3 - (time.monotonic() - began)))

    async def _renew(self, number: int) -> None:
        if (lease := self._leases.get(number)) is not None:
            with suppress(LeaseGone):  # it may just have left
                await self._store.keep_alive(lease)


def _moved(record: Record, number: int, at: int) -> Record:
    return (
        record._replace(rank_ip=_host(number), rank_port=40000 + at)
        if isinstance(record, RankRecord)
        else record
    )


def _role(number: int) -> Role:
    return "decode" if number % 2 else "prefill"


def _host(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def keys_of(size: int) -> int:
    """How many keys a fleet of ``size`` has."""
    return size * (RANKS + 1)
