"""What a listed record and a single event cost a router's process in CPU, without the network around them.

A list is taken from the real etcd, its calls included. Events are the watch answers that etcd would send, as bytes: read by
the driver's own code, folded by a follower, told to what a router subscribes. Of some rounds the least counts: a
neighbour on the same core makes the same work cost up to twice as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from bench.registry_fleet import Fleet
from pdcore import telemetry
from pdcore.clock import SystemClock
from pdcore.config import ROUTER, RouterConfig, load
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.revisions import RevisionGrouper
from pdcore.registry.follower import Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.store import Alive, Snapshot, Store, Stored, WatchMessage
from pdcore.router.assembly import assemble, watching_the_fleet
from pdcore.router.callbacks import Callbacks
from pdcore.router.contacts import Contacts
from pdcore.router.learned import Learned
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.wire_upstream import WireUpstream
from pdcore.topology import codec, keys
from pdcore.topology.events import InstanceReady
from pdcore.topology.keys import Keyspace, RankId, RankPosition
from pdcore.topology.records import State
from pdcore.topology.topology import build
from tests.support import fleet as records

ROUNDS = 5
SYNC_S = 60.0
LINES = 500


async def per_listed_record(store: Store, keyspace: Keyspace) -> float:
    """Microseconds per record of listing everything and building its topology."""
    took: list[float] = []
    for _ in range(ROUNDS):
        gc.collect()
        before = time.process_time()
        snapshot = await store.list(keyspace.view)
        listed = {key.removeprefix(keyspace.view): stored for key, stored in snapshot.entries.items()}
        topology = await asyncio.to_thread(
            build, listed, snapshot.revision
        )  # leases are kept alive beside it
        took.append((time.process_time() - before) / len(listed) * 1e6)
        del topology
    return min(took)


async def per_event(snapshot: Snapshot, keyspace: Keyspace, answers: Sequence[bytes]) -> float:
    """Microseconds per watch answer that holds one event, with all that a router does on it but log lines."""
    return min([await _replayed(snapshot, keyspace, answers) for _ in range(ROUNDS)])


async def _replayed(snapshot: Snapshot, keyspace: Keyspace, answers: Sequence[bytes]) -> float:
    replay = Replay(snapshot, answers)
    async with Follower(replay, keyspace) as follower, subscribed(follower):
        await follower.wait_until(lambda topology: bool(topology.instances), SYNC_S)
        before = time.thread_time()
        replay.go.set()
        await replay.done.wait()
        took = time.thread_time() - before
    gc.unfreeze()
    return took / len(answers) * 1e6


class Replay(MemoryStore):
    """A store that holds ``snapshot``; its watch hands over ``answers`` as fast as they are read, once ``go`` is set."""

    def __init__(self, snapshot: Snapshot, answers: Sequence[bytes]) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._answers = answers
        self.go = asyncio.Event()
        self.done = asyncio.Event()

    async def list(self, prefix: str) -> Snapshot:
        """The snapshot."""
        return self._snapshot

    async def get(self, key: str) -> Stored | None:
        """From the snapshot."""
        return self._snapshot.entries.get(key)

    @asynccontextmanager
    async def watch(self, prefix: str, after_revision: int) -> AsyncIterator[AsyncIterator[WatchMessage]]:
        """The answers."""
        yield self._read(after_revision)

    async def _read(self, after_revision: int) -> AsyncIterator[WatchMessage]:
        grouper = RevisionGrouper(after_revision)
        yield Alive(after_revision)
        await self.go.wait()
        for answer in self._answers:
            read = wire.WatchResponse.FromString(answer)
            for revision in grouper.add(read.events, fragment=read.fragment):
                yield revision
        self.done.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def subscribed(follower: Follower) -> AsyncIterator[None]:
    """What a router's process does on events."""
    serving = assemble(
        load(RouterConfig, ROUTER, {}, section="router"),
        store=MemoryStore(),
        follower=follower,
        upstream=WireUpstream(connect_timeout_s=1),
        contacts=Contacts(learned=Learned(timeout_s=1), callbacks=Callbacks("")),
        clock=SystemClock(),
        lease=lambda: None,
    )
    with watching_the_fleet(serving, Lifecycle(max_in_flight=1)):
        async with serving.fleet:
            yield


def per_line() -> float:
    """Microseconds of CPU per log line as a router writes it of an event."""
    log = telemetry.logger(__name__)
    facts = InstanceReady(revision=1, instance_id="decode-10.0.0.1-8000", incarnation="0" * 32).log_fields()
    took = []
    for _ in range(ROUNDS):
        before = time.thread_time()
        for _ in range(LINES):
            log.warning("instance ready", **{name: fact for name, fact in facts.items() if name != "event"})
        took.append((time.thread_time() - before) / LINES * 1e6)
    return min(took)


@contextlib.contextmanager
def lines_to_nowhere(level: str) -> Iterator[None]:
    """Log lines from ``level`` on are made and written inside the block, but nobody sees them."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        with contextlib.redirect_stderr(nowhere):
            telemetry.configure("text", level, role="router", router_id="bench")
        yield


def state_answers(fleet: Fleet, keyspace: Keyspace, first_revision: int, count: int) -> list[bytes]:
    """Instances that say, one after another, that they drain, and then that they serve again."""
    found = []
    for at in range(count):
        number = at % fleet.size
        state: State = "serving" if at // fleet.size % 2 else "draining"
        value = codec.encode(fleet.record(number, state))
        found.append(_answer(keyspace, keys.instance(fleet.instance_id(number)), value, first_revision + at))
    return found


def rank_answers(fleet: Fleet, keyspace: Keyspace, first_revision: int, count: int) -> list[bytes]:
    """Ranks that say something else than before."""
    found = []
    for at in range(count):
        number = at % fleet.size
        record = fleet.record(number, "serving")
        rank = records.rank_record(incarnation=record.incarnation, rank_port=1 + at % 60_000)
        key = keys.rank(RankId(fleet.instance_id(number), RankPosition(1, 0, 3)))
        found.append(_answer(keyspace, key, codec.encode(rank), first_revision + at))
    return found


def _answer(keyspace: Keyspace, key: str, value: bytes, revision: int) -> bytes:
    pair = wire.KeyValue(
        key=(keyspace.view + key).encode(), value=value, mod_revision=revision, create_revision=1
    )
    answer = wire.WatchResponse(header=wire.Header(revision=revision), events=[wire.Event(kv=pair)])
    return answer.SerializeToString()
