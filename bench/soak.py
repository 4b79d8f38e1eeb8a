"""Whether anything grows: the same small life again and again, as fast as the machine allows.

``python -m bench soak [--json] [--cycles 10000] [--rooms 100000] [--processes 30]``, a real etcd under it. In this process
run the whole code of registrars (their channel, their connection to etcd, claim, lease, keys, departure: everything
but the process itself), a router's follower with its overlay and subscribers, and both ends of the room directory;
whole registrar processes are fewer, because each costs a second. After the first fifth of each part, tasks, threads and
descriptors must be the same at every look, and memory must not grow by more than a kilobyte per cycle.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bench.figures import Figure, limit, show
from bench.growth import Growth
from bench.registry_cpu import lines_to_nowhere, subscribed
from bench.soak_lives import register_and_leave, register_and_leave_as_a_process
from pdcore.registry.desired import Fence
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.follower import Follower
from pdcore.registry.rooms.opening import open_reader, open_writer
from pdcore.registry.store import Put
from pdcore.topology.keys import Keyspace
from tests.support.etcd_server import EtcdServer

KEYSPACE = Keyspace(cluster="soak")
LOOKS = 20
IDS = 64
AT_ONCE = 8
ROOMS_AT_ONCE = 100
SEEN_S = 60.0
STORE_TIMEOUT_S = 10.0
LIMIT_S = 20 * 60.0
BYTES_PER_CYCLE = 1024.0


@dataclass(frozen=True)
class Sizes:
    """How many lives of each kind."""

    cycles: int = 10_000
    rooms: int = 100_000
    processes: int = 30


def main(arguments: list[str]) -> int:
    """Run every part and show the table; 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench soak", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    for name, default in (("cycles", Sizes.cycles), ("rooms", Sizes.rooms), ("processes", Sizes.processes)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        sizes = Sizes(given.cycles, given.rooms, given.processes)
        figures = asyncio.run(soak(Path(scratch), sizes))
    return show(figures, as_json=given.json)


async def soak(directory: Path, sizes: Sizes) -> list[Figure]:
    """The figures of every part, and the time they took."""
    began, progress = time.monotonic(), sys.stderr
    with EtcdServer(directory) as etcd, lines_to_nowhere("info"):
        async with a_router_follows(etcd.endpoint) as follower:
            figures = await registrations(etcd.url, follower, sizes.cycles, progress)
            figures += await room_directory(etcd.endpoint, sizes.rooms, progress)
            figures += await whole_processes(etcd.url, follower, sizes.processes, progress)
    return [*figures, limit("seconds for everything", time.monotonic() - began, "s", LIMIT_S)]


@asynccontextmanager
async def a_router_follows(endpoint: str) -> AsyncIterator[Follower]:
    """A follower with all that a router hangs on it."""
    async with (
        EtcdStore((endpoint,), timeout_s=STORE_TIMEOUT_S) as store,
        Follower(store, KEYSPACE) as follower,
        subscribed(follower),
    ):
        yield follower


async def registrations(url: str, follower: Follower, cycles: int, progress: TextIO) -> list[Figure]:
    """Registrars live and leave, some at once; a router sees each come and go."""
    growth = Growth("register/leave", cycles, progress)
    numbers = itertools.count()
    while growth.done < cycles:
        size = growth.next_size(LOOKS, AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for ids in range(AT_ONCE):
                share = size // AT_ONCE + (ids < size % AT_ONCE)
                group.create_task(_lives(url, follower, ids, share, numbers))
        await growth.look(size)
    return growth.figures(BYTES_PER_CYCLE)


async def _lives(url: str, follower: Follower, ids: int, count: int, numbers: Iterator[int]) -> None:
    for _ in range(count):
        number = next(numbers)
        instance_id = f"decode-{ids}-{number % (IDS // AT_ONCE)}"
        await register_and_leave(url, KEYSPACE, instance_id, f"{number:032x}", follower, SEEN_S)


async def room_directory(endpoint: str, rooms: int, progress: TextIO) -> list[Figure]:
    """Rooms are put, resolved by another connection, and released."""
    growth = Growth("room", rooms, progress)
    fence = Fence(keyspace=KEYSPACE, instance_id="prefill-0", incarnation="1" * 32)
    async with (
        EtcdStore((endpoint,), timeout_s=STORE_TIMEOUT_S) as ours,
        EtcdStore((endpoint,), timeout_s=STORE_TIMEOUT_S) as theirs,
    ):
        await ours.commit((), (Put(fence.claim_key, fence.incarnation.encode()),))
        async with open_writer(fence, ours, None) as writer, open_reader(KEYSPACE, theirs, None) as reader:
            numbers = itertools.count(1)
            while growth.done < rooms:
                size = growth.next_size(LOOKS, ROOMS_AT_ONCE)
                for first in range(0, size, ROOMS_AT_ONCE):
                    batch = dict.fromkeys(itertools.islice(numbers, min(ROOMS_AT_ONCE, size - first)), 1)
                    writer.put(batch)
                    found = await reader.resolve(fence.instance_id, batch, SEEN_S)
                    if found != batch:
                        raise SystemExit(f"{len(batch) - len(found)} rooms did not arrive")
                    writer.release(batch)
                await growth.look(size)
    return growth.figures(BYTES_PER_CYCLE)


async def whole_processes(url: str, follower: Follower, processes: int, progress: TextIO) -> list[Figure]:
    """The same with a registrar process each. Too few for a slope of memory."""
    growth = Growth("registrar process", processes, progress)
    while growth.done < processes:
        incarnation = f"{growth.done:032x}"
        await register_and_leave_as_a_process(url, KEYSPACE, incarnation, follower, SEEN_S)
        await growth.look(1)
    return growth.figures(None)
