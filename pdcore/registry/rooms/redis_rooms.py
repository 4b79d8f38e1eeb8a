"""Rooms in a Redis: entries that expire by themselves, written and read many at a time.

Readers ask for what they wait for, all of it in one ``MGET`` every 20 to 200 ms. Notifications of keys are not used:
they are lost, and late, where many keys expire. No claim guards these writes: a Redis that fails over forgets some
anyway, and an entry is only ever about the room of one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock
from pdcore.config import StoreAccess
from pdcore.errors import StoreError
from pdcore.registry.redis.connection import open_redis, parse_redis_url, redis_call
from pdcore.registry.rooms import names
from pdcore.registry.rooms.awaited import Awaited
from pdcore.registry.rooms.names import RoomName
from pdcore.registry.rooms.readers import ReaderStatistics
from pdcore.registry.rooms.table import Batch
from pdcore.topology.keys import Keyspace

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = telemetry.logger(__name__)

EXPIRY_S: Final = 60
REFRESH_S: Final = 20.0
BATCH: Final = 1000
ASKED_AT_ONCE: Final = 4096
SHORTEST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.2


class RedisConnection:
    """Runs commands against the Redis behind ``access``; failures are StoreError. Connects with the first one."""

    def __init__(self, access: StoreAccess) -> None:
        self._redis: Redis = open_redis(access)
        self._address = parse_redis_url(access.url).address
        self._timeout_s = access.timeout_s

    async def run(self, commands: Iterable[tuple[object, ...]]) -> list[Any]:
        """Every command's answer, in one round trip."""
        async with (
            redis_call(self._address, self._timeout_s),
            self._redis.pipeline(transaction=False) as pipeline,
        ):
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()

    async def close(self) -> None:
        """Close what is open."""
        await self._redis.aclose()


class RedisWriting:
    """Writes for one instance. An entry expires unless its room is written again, as the table has it done."""

    limit = BATCH
    leases = 0

    def __init__(self, keyspace: Keyspace, instance_id: str, connection: RedisConnection) -> None:
        self._keyspace = keyspace
        self._instance_id = instance_id
        self._connection = connection

    async def write(self, batch: Batch) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        commands: list[tuple[object, ...]] = [
            ("SET", self._key(room), names.encode_rank(dp_rank), "EX", EXPIRY_S)
            for room, dp_rank in batch.puts.items()
        ]
        await self._connection.run([*commands, *self._deletes(batch.deletes)])

    async def keep(self) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`: nothing is kept here."""

    def released(self, rooms: Iterable[int]) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""

    def take_gone(self) -> tuple[int, ...]:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        return ()

    def next_at(self) -> float:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        return float("inf")

    async def withdraw(self, rooms: tuple[int, ...]) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        for part in _parts(rooms, BATCH):
            await self._connection.run(self._deletes(part))

    async def close(self) -> None:
        """See :class:`~pdcore.registry.rooms.writer.Writing`."""
        await self._connection.close()

    def _deletes(self, rooms: Sequence[int]) -> list[tuple[object, ...]]:
        return [("UNLINK", *map(self._key, rooms))] if rooms else []

    def _key(self, room: int) -> str:
        return names.key(self._keyspace, RoomName(self._instance_id, room))


class RedisReader:
    """Resolves rooms of any instance. Mutable: ``_awaited`` (who waits for what), ``_pause_s``, ``_store_error``."""

    def __init__(self, keyspace: Keyspace, connection: RedisConnection, clock: Clock) -> None:
        self._keyspace = keyspace
        self._connection = connection
        self._clock = clock
        self._awaited: Awaited[RoomName, int] = Awaited(names.MOST_AWAITED)
        self._news = asyncio.Event()
        self._store_error: str | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._open.push_async_callback(self._connection.close)
        await self._open.enter_async_context(running_beside(self._run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def resolve(self, instance_id: str, rooms: Iterable[int], timeout_s: float) -> dict[int, int]:
        """See :class:`~pdcore.registry.rooms.readers.RoomReader`."""
        wanted = [RoomName(instance_id, room) for room in rooms]
        self._news.set()
        found = await self._awaited.wait(wanted, timeout_s) if wanted else {}
        return {name.room: dp_rank for name, dp_rank in found.items()}

    def statistics(self) -> ReaderStatistics:
        """See :class:`~pdcore.registry.rooms.readers.RoomReader`."""
        return ReaderStatistics(
            known=0, awaited=len(self._awaited), evicted_total=0, store_error=self._store_error
        )

    async def _run(self) -> None:
        pause_s = SHORTEST_PAUSE_S
        while True:
            if not len(self._awaited):
                await self._news.wait()
            fresh = self._news.is_set()
            self._news.clear()
            found = await self._look()
            pause_s = SHORTEST_PAUSE_S if fresh or found else min(2 * pause_s, LONGEST_PAUSE_S)
            await self._clock.sleep(SHORTEST_PAUSE_S)
            await self._wait_news(pause_s - SHORTEST_PAUSE_S)

    async def _look(self) -> bool:
        """Ask once for everything that is waited for; whether something was there."""
        found = False
        for part in _parts(self._awaited.keys, ASKED_AT_ONCE):
            try:
                (values,) = await self._connection.run(
                    [("MGET", *(names.key(self._keyspace, name) for name in part))]
                )
            except StoreError as error:
                self._note_store(str(error))
                return False
            self._note_store(None)
            for name, value in zip(part, values, strict=True):
                dp_rank = None if value is None else names.decode_rank(value)
                if dp_rank is not None:
                    found = True
                    self._awaited.arrived(name, dp_rank)
        return found

    async def _wait_news(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    def _note_store(self, error: str | None) -> None:
        if (error is None) != (self._store_error is None):
            if error is None:
                log.info("rooms can be read again")
            else:
                log.warning("rooms cannot be read; trying on", reason=error)
        self._store_error = error


def _parts(items: Sequence[Any], size: int) -> Iterable[Any]:
    rest = iter(items)
    while part := tuple(islice(rest, size)):
        yield part
