"""Prompts that begin alike share blocks: what is computed, what is shared, what is forgotten; then all of it at random.

The memory here knows of every token of KV which tokens it was computed from.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.scheduler.plan import Compute, Handoff
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.engine.scheduler.unified import UnifiedScheduler
from tests.engine.scheduler.simulation import STOP_TOKEN, Simulation, groups, limits, start

pytestmark = pytest.mark.unit


class Contents(Simulation):
    """A simulation whose blocks may be shared: what an item attends to is checked by what it was computed from."""

    def __init__(self, scheduler: UnifiedScheduler | PrefillScheduler, blocks: BlockGroups) -> None:
        super().__init__(scheduler, blocks)
        self.follower = self  # type: ignore[assignment]  # the memory is here
        self.cells: dict[tuple[int, int, int], int] = {}
        self.computed = 0

    def execute(self, batch: Sequence[Compute]) -> None:
        for item in batch:
            assert all(len(set(ids)) == len(ids) for ids in item.block_tables)
            self.computed += len(item.token_ids)
            self._visit(item, range(item.start, item.start + len(item.token_ids)), write=True)
        for item in batch:
            self._visit(item, range(item.start + len(item.token_ids)), write=False)

    def _visit(self, item: Compute, positions: range, *, write: bool) -> None:
        request = self.scheduler.held(item.request_id)
        known = (*request.start.prompt, *request.output)
        for position in positions:
            content = hash(known[: position + 1])
            for group, (ids, size) in enumerate(zip(item.block_tables, self.blocks.block_sizes, strict=True)):
                cell = (group, ids[position // size], position % size)
                if write:
                    self.cells[cell] = content
                assert self.cells.get(cell) == content, f"{item.request_id} reads another's {cell}"


def unified(blocks: int, *sizes: int, **most: int) -> Contents:
    pool = groups(blocks, *sizes)
    return Contents(UnifiedScheduler(limits(**most), pool, Prefixes(pool)), pool)


def finish(sim: Contents) -> list[Compute]:
    """Run until nothing is left; the items that began a request."""
    firsts: dict[str, Compute] = {}
    for _ in range(500):
        plan = sim.scheduler.plan(sim.now)
        for item in plan.batch:
            firsts.setdefault(item.request_id, item)
        sim.perform(plan)
        if not sim.scheduler.has_computation:
            return list(firsts.values())
    raise AssertionError("never at rest")


def run(sim: Contents, name: str, prompt: Sequence[int], max_tokens: int = 1) -> Compute:
    sim.scheduler.add(start(name, prompt, max_tokens=max_tokens), sim.now)
    (first,) = finish(sim)
    return first


def test_a_repeated_prompt_computes_what_is_behind_its_last_full_block() -> None:
    sim = unified(16)
    first = run(sim, "a", range(100, 110))
    again = run(sim, "b", range(100, 110))
    assert (first.start, again.start, again.token_ids) == (0, 8, (108, 109))
    assert again.block_tables[0][:2] == first.block_tables[0][:2]
    assert sim.scheduler.statistics().prefix_tokens == 20
    assert sim.scheduler.statistics().prefix_hit_tokens == 8
    assert sim.empty
    assert sim.blocks.statistics().cached == 2


def test_the_last_token_is_always_computed() -> None:
    sim = unified(16)
    run(sim, "a", range(100, 108))
    assert run(sim, "b", range(100, 108)).start == 4


def test_an_answer_is_part_of_the_next_prompt() -> None:
    sim = unified(16)
    run(sim, "a", range(100, 105), max_tokens=8)
    conversation = [*range(100, 105), *sim.tokens["a"], 1, 2]
    assert run(sim, "b", conversation).start == 12


def test_a_difference_in_an_early_block_is_one_in_all_that_follow() -> None:
    sim = unified(16)
    run(sim, "a", range(100, 112))
    assert run(sim, "b", [99, *range(101, 112)]).start == 0
    assert run(sim, "c", [*range(100, 104), 99, *range(105, 112)]).start == 4


def test_two_that_run_at_once_share_blocks_and_each_lets_go_of_its_own() -> None:
    sim = unified(16)
    run(sim, "a", range(100, 110))
    for name in ("b", "c"):
        sim.scheduler.add(start(name, range(100, 110), max_tokens=4), sim.now)
    sim.step()
    assert sim.scheduler.held("b").blocks[0][:2] == sim.scheduler.held("c").blocks[0][:2]
    assert sim.blocks.statistics().used == 4
    sim.scheduler.abort("b")
    assert sim.blocks.statistics().used == 3
    finish(sim)
    assert sim.empty


def test_what_was_let_go_of_first_is_forgotten_first_and_a_beginning_last() -> None:
    sim = unified(6)
    run(sim, "old", range(200, 209))
    run(sim, "new", range(100, 109))
    assert sim.blocks.statistics().cached == 4
    run(sim, "large", range(300, 316), max_tokens=1)  # five blocks, of which two are free
    assert run(sim, "new again", range(100, 109)).start == 4
    assert run(sim, "old again", range(200, 209)).start == 0


def test_several_groups_share_as_far_as_all_of_them_can() -> None:
    sim = unified(16, 4, 4)
    run(sim, "a", range(100, 110))
    again = run(sim, "b", range(100, 110))
    assert again.start == 8
    with pytest.raises(ValueError, match="cannot be found by one key"):
        Prefixes(groups(8, 4, 8))


def test_prefill_finds_what_is_still_being_sent_and_says_how_much_it_found() -> None:
    pool = groups(16)
    scheduler = PrefillScheduler(limits(), pool, Prefixes(pool))
    sim = Contents(scheduler, pool)

    def send(room: int) -> Handoff:
        scheduler.add(start(f"r{room}", range(100, 109), room=room), sim.now)
        scheduler.handshaken(room)
        for _ in range(9):
            if handoffs := sim.step().handoffs:
                return handoffs[0]
        raise AssertionError("never computed")

    first, second = send(1), send(2)
    assert (first.cached_blocks, second.cached_blocks) == (0, 2)
    assert first.blocks[0][:2] == second.blocks[0][:2]
    for room in (1, 2):
        scheduler.sent(room)
    assert pool.statistics().lingering == 4  # two shared, and the last of each
    scheduler.write_ended(1)
    assert pool.statistics().lingering == 3
    scheduler.write_ended(2)
    assert sim.empty
    assert pool.statistics().cached == 2


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_everybody_reads_what_is_its_own_and_nothing_is_lost(seed: int) -> None:
    dice = random.Random(seed)
    sim = unified(
        dice.randint(10, 24), *((4, 4) if seed % 2 else ()), max_batch=dice.randint(2, 6), reserved_tokens=1
    )
    beginnings = [[dice.randrange(9, 60) for _ in range(20)] for _ in range(3)]
    names = [f"r{i}" for i in range(40)]
    for name in names:
        prompt = dice.choice(beginnings)[: dice.randint(1, 20)]
        prompt += [dice.randrange(9, 60) for _ in range(dice.randint(0, 6))]
        if len(prompt) < sim.blocks.tokens:
            most = dice.randint(1, 12)
            sim.scheduler.add(start(name, prompt, max_tokens=most, ignore_eos=True), sim.now)
        for _ in range(dice.randint(0, 6)):
            sim.step()
            sim.now += 0.05
        if dice.random() < 0.2:
            sim.scheduler.abort(dice.choice(names))
    finish(sim)
    assert sim.empty
    assert sim.scheduler.statistics().prefix_hit_tokens > 0
    assert STOP_TOKEN < 9
    assert set(sim.ends.values()) <= {1}
