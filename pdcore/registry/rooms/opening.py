"""From settings to a writer and a reader of the room directory."""

from __future__ import annotations

from typing import Literal

from pdcore.clock import Clock, SystemClock
from pdcore.config import StoreAccess
from pdcore.registry.desired import Fence
from pdcore.registry.rooms.readers import RoomReader
from pdcore.registry.rooms.store_reader import StoreReader
from pdcore.registry.rooms.store_writing import StoreWriting
from pdcore.registry.rooms.table import RoomTable
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace


def directory_name(redis: StoreAccess | None) -> Literal["store", "redis"]:
    """Where the directory is, as an instance's record says it."""
    return "store" if redis is None else "redis"


def open_writer(
    fence: Fence,
    store: Store,
    redis: StoreAccess | None,
    *,
    lives_s: float = float("inf"),
    clock: Clock | None = None,
) -> RoomWriter:
    """Where the instance of ``fence`` puts its rooms: in ``redis`` if there is one, else in ``store``, which is open.

    A room nobody releases lives for ``lives_s``. Raises ConfigError when that Redis cannot be used.
    """
    time = clock or SystemClock()
    if redis is None:
        return RoomWriter(StoreWriting(fence, store, time), RoomTable(lives_s=lives_s), clock=time)
    # Loaded only where a Redis is used: redis-py is an optional extra.
    from pdcore.registry.rooms.redis_rooms import REFRESH_S, RedisConnection, RedisWriting

    writing = RedisWriting(fence.keyspace, fence.instance_id, RedisConnection(redis))
    return RoomWriter(writing, RoomTable(lives_s=lives_s, refresh_s=REFRESH_S), clock=time)


def open_reader(
    keyspace: Keyspace, store: Store, redis: StoreAccess | None, *, clock: Clock | None = None
) -> RoomReader:
    """Where rooms are looked up: in ``redis`` if there is one, else in ``store``, which is open."""
    time = clock or SystemClock()
    if redis is None:
        return StoreReader(keyspace, store, time)
    from pdcore.registry.rooms.redis_rooms import RedisConnection, RedisReader

    return RedisReader(keyspace, RedisConnection(redis), time)
