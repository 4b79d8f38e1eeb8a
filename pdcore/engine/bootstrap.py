"""What a leader has of the room directory, and what a prefill leader answers on its bootstrap port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp

from pdcore.clock import Clock
from pdcore.engine.room_choice import RoomLookup
from pdcore.engine.startup import Startup
from pdcore.engine.state import LeaderState
from pdcore.registry.desired import Fence
from pdcore.registry.facade.app import create_app
from pdcore.registry.facade.bootstrap import ROOM_LIFE_S, Bootstrap
from pdcore.registry.facade.own import OwnRanks
from pdcore.registry.rooms.opening import directory_name, open_reader, open_writer
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """The room directory. Nothing of it connects or reads before it is first used.

    ``choices`` takes the rooms of a prefill leader that chooses DP ranks, ``offered`` those that callers of its
    bootstrap port put.
    """

    lookup: RoomLookup
    choices: RoomWriter | None
    offered: RoomWriter | None


@asynccontextmanager
async def rooms_of(startup: Startup, store: Store, clock: Clock) -> AsyncIterator[Rooms]:
    """The directory as the leader of ``startup`` needs it, for the length of the block."""
    config, identity = startup.config, startup.identity
    keyspace, redis = Keyspace(cluster=config.cluster), config.redis_access
    fence = Fence(keyspace=keyspace, instance_id=identity.instance_id, incarnation=identity.incarnation)
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(open_reader(keyspace, store, redis, clock=clock))
        choices = offered = None
        if identity.role == "prefill":
            offered = await stack.enter_async_context(
                open_writer(fence, store, redis, lives_s=ROOM_LIFE_S, clock=clock)
            )
            if config.dp_rank_choice == "engine":
                choices = await stack.enter_async_context(open_writer(fence, store, redis, clock=clock))
        lookup = RoomLookup(reader=reader, directory=directory_name(redis))
        yield Rooms(lookup=lookup, choices=choices, offered=offered)


def bootstrap_app(state: LeaderState, view: Callable[[], Topology], rooms: Rooms) -> ASGIApp:
    """The bootstrap protocol for a native prefill instance, from what the keyspace shows of it."""
    assert rooms.offered is not None, "only a prefill leader has a bootstrap port"
    ranks = OwnRanks(
        instance_id=state.instance_id,
        incarnation=state.incarnation,
        view=view,
        alive=lambda: state.phase != "failed",
    )
    bootstrap = Bootstrap(
        state.instance_id, state.incarnation, ranks, view, rooms.offered, rooms.lookup.reader
    )
    return create_app(bootstrap)
