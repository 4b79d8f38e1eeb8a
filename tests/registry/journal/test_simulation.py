"""Four writers of one journal, with restarts, lags, lost calls, compaction, lost tails: no hole, no copy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from pdcore.registry.journal.entries import Changes, Entry, Gap
from pdcore.registry.journal.replay import Replayer
from pdcore.registry.journal.stream import Stream
from pdcore.topology.topology import Stored, Topology, build
from tests.registry.journal.model import Journal, ModelStream
from tests.registry.journal.simulation import KEYSPACE, Truth, World, turns

STEPS = 60


async def check(stream: Stream, truth: Truth, *, lost: bool) -> list[Gap]:
    """Every entry tells the truth, every revision is told once or lies in a gap; the gaps are returned."""
    entries = [entry async for entry in stream.entries(0)]
    told = [entry for entry in entries if isinstance(entry, Changes | Gap)]
    gaps = [entry for entry in told if isinstance(entry, Gap)]
    begun = told[0].revision
    unknown = {revision for gap in gaps for revision in range(gap.after + 1, gap.revision + 1)}
    changed = [entry.revision for entry in told if isinstance(entry, Changes)]
    assert changed == sorted(set(changed)), "a copy"
    expected = {revision for revision in truth.views if revision > begun and revision not in unknown}
    assert set(changed) - {begun} == expected, "a hole, or an entry that nobody wrote"
    for before, entry in zip(told, told[1:], strict=False):
        assert entry.after == before.revision
    for gap in gaps:
        assert gap.after == 0 or gap.after < truth.compacted, gap
    check_replay(entries, truth)
    return gaps


def check_replay(entries: list[Entry], truth: Truth) -> None:
    """At each revision the replayed topology is the one of that revision; nothing is lost but by a gap."""
    replayer, topology = Replayer(), Topology.empty()
    reasons = {entry.reason for entry in entries if isinstance(entry, Gap)}
    for entry in entries:
        step = replayer.take(entry)
        if step is None:
            continue
        topology = step.topology(topology)
        at = max(revision for revision in truth.views if revision <= step.revision)
        view = {key: Stored(*stored) for key, stored in truth.views[at].items()}
        assert topology == build(view, at)
        assert step.lost is None or step.lost in reasons
    assert replayer.revision >= max(truth.views)


async def run_badly(world: World, lose_tail: Callable[[str], Awaitable[None]] | None) -> None:
    """A few dozen changes while everything goes wrong, then good weather."""
    random = world.random
    async with world.running():
        for _ in range(STEPS):
            await world.change_something()
            await turns(random.choice((0, 0, 3, 30)))
            event, place = random.random(), random.randrange(len(world.writers))
            if event < 0.1:
                await world.restart(place)
            elif event < 0.2:
                world.weathers[place].stalled ^= True
            elif event < 0.24:
                world.compact()
            elif event < 0.27 and lose_tail is not None:
                await lose_tail(world.store_id)
            elif event < 0.275:
                await world.wipe()
        await world.settle()


class ModelJournals:
    """The journals of all store ids, and copies of earlier states to fall back to."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._streams: dict[str, ModelStream] = {}
        self._copies: dict[str, list[Journal]] = {}

    def __call__(self, store_id: str) -> ModelStream:
        return self._streams.setdefault(store_id, ModelStream())

    async def lose_tail(self, store_id: str) -> None:
        """Be as a moment ago, or the next time."""
        copies = self._copies.setdefault(store_id, [])
        stream = self(store_id)
        if copies and self._random.random() < 0.6:
            stream.journal = self._random.choice(copies[-3:]).copy()
        copies.append(stream.journal.copy())


async def simulate(seed: int) -> None:
    """One run over the model."""
    random = Random(seed)
    journals = ModelJournals(random)
    losing = seed % 3 == 0
    world = World(random, journals)
    await run_badly(world, journals.lose_tail if losing else None)
    for store_id, truth in world.truths.items():
        if store_id == world.store_id:
            await check(journals(store_id), truth, lost=losing)


@pytest.mark.unit
@pytest.mark.parametrize("first", range(0, 30, 10))
async def test_no_hole_and_no_copy(first: int) -> None:
    for seed in range(first, first + 10):
        await simulate(seed)


@pytest.mark.cluster
@pytest.mark.parametrize("first", range(0, 300, 25))
async def test_no_hole_and_no_copy_in_300_runs(first: int) -> None:
    for seed in range(first, first + 25):
        await simulate(seed)
