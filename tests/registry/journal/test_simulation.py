"""Four writers of one journal, with restarts, lags, lost calls, compaction, lost tails: no hole, no copy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from pdcore.registry.journal.entries import Changes, Entry, Gap, Piece
from pdcore.registry.journal.replay import Replayer
from pdcore.registry.journal.stream import Stream
from pdcore.topology.topology import Stored, Topology, build
from tests.registry.journal.model import Journal, ModelStream
from tests.registry.journal.simulation import Truth, World, turns

STEPS = 60


async def check(stream: Stream, truth: Truth, *, whole: bool) -> None:
    """Every entry tells the truth, and every revision is told once or lies in a gap that compaction explains.

    ``whole``: up to the newest revision; a store that was replaced may have been told in part.
    """
    entries = [entry async for entry in stream.entries(0)]
    if not entries and not whole:
        return
    told = [entry for entry in entries if isinstance(entry, Changes | Gap)]
    gaps = [entry for entry in told if isinstance(entry, Gap)]
    begun, end = told[0].revision, max(truth.views) if whole else told[-1].revision
    unknown = {revision for gap in gaps for revision in range(gap.after + 1, gap.revision + 1)}
    changed = [entry.revision for entry in told if isinstance(entry, Changes)]
    assert changed == sorted(set(changed)), "a copy"
    expected = {revision for revision in truth.views if begun < revision <= end} - unknown
    assert set(changed) - {begun} == expected, "a hole, or an entry that nobody wrote"
    assert all(gap.after == 0 or gap.after < truth.compacted for gap in gaps), "a gap without a reason"
    check_chain(entries)
    check_replay(entries, truth, end)


def check_chain(entries: list[Entry]) -> None:
    """A segment begins the stream; every entry names its predecessor, its base and its number."""
    assert isinstance(entries[1], Piece)
    before, base = entries[0], 0
    for entry in entries[1:]:
        if isinstance(entry, Piece):
            assert (entry.revision, entry.number) == (before.revision, before.number)
            base = entry.revision
        else:
            assert (entry.after, entry.base, entry.number) == (before.revision, base, before.number + 1)
        before = entry


def check_replay(entries: list[Entry], truth: Truth, end: int) -> None:
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
    assert replayer.revision >= end


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
            passed = stream.journal.passed  # a key of its own: whether it falls back too is another matter
            stream.journal = self._random.choice(copies[-3:]).copy()
            if self._random.random() < 0.5:
                stream.journal.passed = passed
        copies.append(stream.journal.copy())


async def simulate(seed: int) -> None:
    """One run over the model."""
    random = Random(seed)
    journals = ModelJournals(random)
    world = World(random, journals)
    await run_badly(world, journals.lose_tail if seed % 3 == 0 else None)
    for store_id, truth in world.truths.items():
        await check(journals(store_id), truth, whole=store_id == world.store_id)


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
