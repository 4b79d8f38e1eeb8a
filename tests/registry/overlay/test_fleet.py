"""Probes on real sockets, and the fleet that a process sees over a store that loses keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from pdcore.clock import SystemClock
from pdcore.registry.follower import Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.overlay.fleet import MAX_PROBES, Fleet
from pdcore.registry.overlay.prober import ask, judge
from pdcore.registry.overlay.suspect import Note, Outcome, Probe
from pdcore.registry.probe import Health
from pdcore.registry.store import Delete, Put
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology
from tests.registry.overlay.world import prefill
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import FakeEngine, Fin, Hang, Reset, Script, Send
from tests.support.fleet import complete
from tests.support.processes import free_port

pytestmark = pytest.mark.integration

SPACE = Keyspace(cluster="doubted")
WITHIN_S = 10.0


class SlowClock(SystemClock):
    """A process that stood still: twice as much time passed as was asked for."""

    def now(self) -> float:
        return 2 * time.monotonic()


@pytest.mark.parametrize(
    ("health", "expected", "outcome"),
    [
        (Health(200, "i1"), "i1", "answered"),
        (Health(503, "i1"), "i1", "failed"),
        (Health(200, "i2"), "i1", "other"),
        (Health(503, "i2"), "i1", "other"),
        (Health(200, None), "i1", "other"),
        (Health(502, None), "i1", "silent"),
    ],
)
def test_what_an_answer_counts_as(health: Health, expected: str, outcome: Outcome) -> None:
    assert judge(health, expected) == outcome


@pytest.mark.parametrize(
    ("health", "outcome"),
    [
        (fake.answer(200, {"incarnation": "i1"}), "answered"),
        ((Hang(),), "silent"),
        ((Reset(),), "silent"),
        ((Fin(),), "silent"),
        ((Send(b"SSH-2.0 hello\r\n\r\n"), Fin()), "silent"),
        ((Send(b"x" * 100_000), Hang()), "silent"),
        ((fake.head(200, {"content-length": "9999999"}), Send(b"x" * 100_000), Hang()), "other"),
    ],
)
async def test_a_probe_has_one_outcome_whatever_happens(health: Script, outcome: Outcome) -> None:
    async with FakeEngine([()], health=health) as engine:
        assert await ask(Probe(key=("p", "i1"), url=engine.url), 0.5, SystemClock()) == outcome


async def test_a_closed_port_refuses_and_a_late_deadline_proves_nothing() -> None:
    closed = Probe(key=("p", "i1"), url=f"http://127.0.0.1:{free_port()}")
    assert await ask(closed, 0.5, SystemClock()) == "refused"
    async with FakeEngine([()], health=(Hang(),)) as engine:
        assert await ask(Probe(key=("p", "i1"), url=engine.url), 0.1, SlowClock()) == "late"
    assert await ask(Probe(key=("p", "i1"), url="gopher://127.0.0.1"), 0.5, SystemClock()) == "silent"


class Seen:
    """A store, a follower and a fleet."""

    def __init__(self, store: MemoryStore, fleet: Fleet) -> None:
        self.store = store
        self.fleet = fleet
        self.notes: list[Note] = []
        self.changes = 0
        fleet.subscribe(self._changed, self.notes.append)

    def _changed(self) -> None:
        self.changes += 1

    def kinds(self) -> list[str]:
        return [note.kind for note in self.notes]

    async def register(self, *names: str, url: str) -> None:
        for name in names:
            found = complete(name, prefill("i1", url=url))
            await self.store.commit(
                (), tuple(Put(SPACE.view + key, codec.encode(one)) for key, one in found.items())
            )
        await self.fleet.wait_until(lambda view: set(names) <= set(view.instances), WITHIN_S)

    async def lose(self, *names: str) -> None:
        for name in names:
            found = complete(name, prefill("i1"))
            await self.store.commit((), tuple(Delete(SPACE.view + key) for key in found))


@asynccontextmanager
async def seeing(cached: Topology | None = None, probe_timeout_s: float = 0.3) -> AsyncIterator[Seen]:
    store = MemoryStore()
    async with store, Follower(store, SPACE) as follower:
        fleet = Fleet(follower, probe_timeout_s=probe_timeout_s, cached=cached, random=Random(5))
        async with fleet:
            await follower.wait_until(lambda _: True, WITHIN_S)
            yield Seen(store, fleet)


async def test_a_lost_instance_is_still_there_for_whoever_waits_for_it() -> None:
    async with seeing() as seen, FakeEngine([()]) as engine:
        await seen.register("p0", url=engine.url)
        changes = seen.changes
        await seen.lose("p0")
        await eventually(lambda: seen.kinds() == ["suspected", "kept"], WITHIN_S)
        view = await seen.fleet.wait_until(lambda view: "p0" in view.instances, WITHIN_S)
        assert view is seen.fleet.topology
        assert seen.fleet.view.suspects == {"p0"}
        assert seen.fleet.statistics().suspects == 1
        assert seen.changes >= changes + 2
        await engine.refuse()
        await seen.fleet.wait_until(lambda view: "p0" not in view.instances, WITHIN_S)
        assert seen.fleet.probes("refused") == 1


async def test_a_lost_machine_is_out_after_two_probes() -> None:
    async with seeing(probe_timeout_s=0.5) as seen, FakeEngine([()], health=(Hang(),)) as engine:
        await seen.register("p0", url=engine.url)
        await seen.lose("p0")
        await eventually(lambda: "gone" in seen.kinds(), WITHIN_S)
        assert engine.probes == 2


async def test_many_suspects_are_asked_a_few_at_a_time_and_all_of_them_soon() -> None:
    names = [f"p{number}" for number in range(100)]
    slow: Script = (Hang(), *fake.answer(200, {"incarnation": "i1"}))
    async with seeing(probe_timeout_s=5) as seen, FakeEngine([()], health=slow) as engine:
        await seen.register(*names, url=engine.url)
        await seen.lose(*names)
        await eventually(lambda: engine.open_now == MAX_PROBES, WITHIN_S)
        await asyncio.sleep(0)
        assert engine.probes == MAX_PROBES
        engine.release.set()
        await eventually(lambda: seen.kinds().count("kept") == len(names), WITHIN_S, "all kept")
        assert seen.fleet.view.suspects == set(names)


async def test_leaving_ends_every_probe() -> None:
    async with FakeEngine([()], health=(Hang(),)) as engine:
        async with seeing(probe_timeout_s=60) as seen:
            await seen.register("p0", url=engine.url)
            await seen.lose("p0")
            await eventually(lambda: engine.open_now == 1, WITHIN_S)
        await eventually(lambda: engine.open_now == 0, WITHIN_S)
