from __future__ import annotations

import pytest

from pdcore.engine.scheduler.plan import Ahead
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.errors import ApiError
from tests.engine.scheduler.simulation import Simulation, groups, limits, next_token, start

pytestmark = pytest.mark.unit


class Prefill:
    def __init__(
        self, blocks: int = 16, *, per_chunk: bool = False, remembers: bool = False, early: bool = False
    ) -> None:
        self.pool = groups(blocks)
        prefixes = Prefixes(self.pool) if remembers else None
        self.scheduler = PrefillScheduler(limits(), self.pool, prefixes, per_chunk=per_chunk, early=early)
        self.simulation = Simulation(self.scheduler, self.pool)

    @property
    def empty(self) -> bool:
        return self.simulation.empty


def test_a_room_does_not_start_before_the_handshake() -> None:
    p = Prefill()
    p.scheduler.add(start("a", room=9), 0)
    assert p.scheduler.plan(0).batch == ()
    assert not p.scheduler.has_computation
    p.scheduler.handshaken(9)
    assert [c.request_id for c in p.scheduler.plan(0).batch] == ["a"]


def test_a_complete_prompt_is_handed_off_with_pinned_blocks() -> None:
    p = Prefill()
    p.scheduler.add(start("a", 6, room=9), 0)
    p.scheduler.handshaken(9)
    (handoff,) = p.simulation.step().handoffs
    assert (handoff.room, handoff.kv_len, len(handoff.blocks[0])) == (9, 6, 2)
    assert handoff.first_token == 1000 + 6
    request = p.scheduler.sent(9)
    assert request is not None
    assert request.request_id == "a"
    assert not p.empty, "a write may still read the blocks"
    p.scheduler.write_ended(9)
    assert p.empty


@pytest.mark.parametrize("when", ["bootstrapping", "waiting", "running", "sending"])
@pytest.mark.parametrize("how", ["abort", "failed", "deadline"])
def test_leaving_in_any_state_returns_every_block(when: str, how: str) -> None:
    p = Prefill()
    p.scheduler.add(start("a", 12, room=9, remaining_ms=1000), 0)
    if when != "bootstrapping":
        p.scheduler.handshaken(9)
    if when == "running":
        p.simulation.step()
    if when == "sending":
        while not p.simulation.step().handoffs:
            pass
    if how == "abort":
        assert p.scheduler.abort("a")
    elif how == "failed":
        assert p.scheduler.failed(9) is not None
    else:
        (failure,) = p.scheduler.plan(2).fail
        assert (failure.room, failure.code) == (9, "deadline_exceeded")
    if when == "sending":
        assert not p.empty
        p.scheduler.write_ended(9)
    assert p.empty
    assert p.scheduler.sent(9) is None
    assert p.scheduler.failed(9) is None


def test_a_room_is_not_used_again_while_its_write_is_under_way() -> None:
    p = Prefill()
    p.scheduler.add(start("a", room=9), 0)
    p.scheduler.handshaken(9)
    while not p.simulation.step().handoffs:
        pass
    p.scheduler.abort("a")
    with pytest.raises(ApiError) as refused:
        p.scheduler.add(start("b", room=9), 0)
    assert refused.value.code == "room_in_use"
    p.scheduler.write_ended(9)
    p.scheduler.add(start("b", room=9), 0)


def test_prompts_share_a_step_within_the_token_budget() -> None:
    p = Prefill()
    for room in (1, 2, 3):
        p.scheduler.add(start(str(room), 5, room=room), 0)
        p.scheduler.handshaken(room)
    batch = p.scheduler.plan(0).batch
    assert [(c.request_id, len(c.token_ids)) for c in batch] == [("1", 5), ("2", 3)]
    handoffs = p.scheduler.complete(batch, {c.request_id: next_token(c) for c in batch if c.samples}).handoffs
    assert [h.room for h in handoffs] == [1]


def test_a_prompt_needs_no_room_to_grow_here() -> None:
    p = Prefill(blocks=4)
    for room in (1, 2):
        p.scheduler.add(start(str(room), 8, room=room, max_tokens=100), 0)
        p.scheduler.handshaken(room)
    p.scheduler.plan(0)
    assert p.scheduler.statistics().running == 2


def test_an_unknown_room_changes_nothing() -> None:
    p = Prefill()
    p.scheduler.handshaken(77)
    assert p.scheduler.sent(77) is None
    assert p.scheduler.failed(77) is None
    p.scheduler.write_ended(77)


# Chunk by chunk


def begun(prompt: int = 20, **how: bool) -> Prefill:
    """A prompt in room 9 that has its handshake."""
    p = Prefill(per_chunk=True, **how)
    p.scheduler.add(start("a", prompt, room=9, remaining_ms=600_000), 0)
    p.scheduler.handshaken(9)
    return p


def test_what_a_chunk_filled_is_sent_with_the_step_that_computes_the_next() -> None:
    p = begun()
    assert p.scheduler.plan(0).ahead == ()
    p.simulation.step()
    plan = p.scheduler.plan(0)
    [part] = plan.ahead
    assert (part.room, part.kv_len, part.computed, part.first) == (9, 20, 8, True)
    assert part.blocks == plan.batch[0].block_tables
    p.simulation.perform(plan)
    plan = p.scheduler.plan(0)
    assert [(part.computed, part.first) for part in plan.ahead] == [(16, False)]
    [handoff] = p.simulation.perform(plan).handoffs
    assert (handoff.blocks, handoff.first) == (part.blocks, False)
    assert p.pool.statistics().pinned == 5
    p.scheduler.write_ended(9)
    p.scheduler.sent(9)
    assert p.empty


def test_a_prompt_of_one_chunk_is_sent_once() -> None:
    p = begun(8)
    plan = p.scheduler.plan(0)
    assert plan.ahead == ()
    assert p.simulation.perform(plan).handoffs[0].first


def test_what_a_step_completes_is_sent_as_soon_as_the_step_has_stored_it() -> None:
    p = begun(early=True)
    assert p.scheduler.plan(0).completing == ()
    p.simulation.step()
    p.simulation.step()
    plan = p.scheduler.plan(0)
    assert [(part.computed, part.first) for part in plan.ahead] == [(16, False)]
    assert [(part.room, part.computed, part.first) for part in plan.completing] == [(9, 20, False)]
    [handoff] = p.simulation.perform(plan).handoffs
    assert (handoff.blocks, handoff.first) == (plan.completing[0].blocks, False)
    p.scheduler.write_ended(9)
    p.scheduler.sent(9)
    assert p.empty


def test_what_one_step_completes_is_pinned_once() -> None:
    p = begun(8, early=True)
    plan = p.scheduler.plan(0)
    assert (plan.ahead, [part.first for part in plan.completing]) == ((), [True])
    assert p.pool.statistics().pinned == 2
    [handoff] = p.simulation.perform(plan).handoffs
    assert not handoff.first
    assert p.scheduler.abort("a")
    assert not p.empty, "a write may still read the blocks"
    p.scheduler.write_ended(9)
    assert p.empty


def test_a_request_that_left_before_it_was_remembered_is_not() -> None:
    p = begun(8, remembers=True)
    plan = p.scheduler.plan(0)
    p.scheduler.complete(plan.batch, {"a": 1})
    p.scheduler.abort("a")
    p.scheduler.settle()
    p.scheduler.write_ended(9)
    assert (p.empty, p.pool.statistics().cached) == (True, 0)


def test_nothing_is_sent_twice_and_nothing_that_is_not_full() -> None:
    p = begun()
    other = start("b", 5, room=3)
    p.scheduler.add(other, 0)
    p.scheduler.handshaken(3)
    sent = [part.computed for _ in range(6) for part in _ahead(p) if part.room == 9]
    assert sent == sorted(set(sent))
    assert len({computed // 4 for computed in sent}) == len(sent)


def _ahead(p: Prefill) -> tuple[Ahead, ...]:
    plan = p.scheduler.plan(0)
    p.simulation.perform(plan)
    return plan.ahead


def test_without_the_setting_nothing_is_sent_ahead() -> None:
    p = Prefill()
    p.scheduler.add(start("a", 20, room=9), 0)
    p.scheduler.handshaken(9)
    assert [_ahead(p) for _ in range(4)] == [()] * 4


def test_what_was_found_in_the_cache_is_sent_while_the_first_chunk_is_computed() -> None:
    p = begun(remembers=True)
    while not p.simulation.step().handoffs:
        pass
    p.scheduler.add(start("b", 20, room=11), 0)
    p.scheduler.handshaken(11)
    plan = p.scheduler.plan(0)
    assert [(part.room, part.computed, part.first) for part in plan.ahead] == [(11, 16, True)]
    [handoff] = p.scheduler.complete(plan.batch, {"b": 1}).handoffs
    assert (handoff.room, handoff.first, handoff.cached_blocks) == (11, False, 4)
    for room in (9, 11):
        p.scheduler.sent(room)
    assert not p.empty, "shared blocks are pinned by both"
    p.scheduler.write_ended(11)
    assert not p.empty
    p.scheduler.write_ended(9)
    assert p.empty


@pytest.mark.parametrize("how", ["abort", "failed", "deadline"])
def test_leaving_between_two_chunks_keeps_the_blocks_until_the_write_ended(how: str) -> None:
    p = begun()
    p.simulation.step()
    assert _ahead(p)
    if how == "abort":
        assert p.scheduler.abort("a")
    elif how == "failed":
        assert p.scheduler.failed(9) is not None
    else:
        [failure] = p.scheduler.plan(601).fail
        assert failure.room == 9
    assert p.scheduler.plan(601).ahead == ()
    assert p.pool.statistics().lingering == 5
    with pytest.raises(ApiError) as refused:
        p.scheduler.add(start("b", room=9), 601)
    assert refused.value.code == "room_in_use"
    p.scheduler.write_ended(9)
    assert p.empty


def test_blocks_of_a_prompt_that_takes_long_to_compute_are_not_stuck() -> None:
    p = begun()
    p.simulation.step()
    assert _ahead(p)
    p.scheduler.plan(500)
    assert p.scheduler._stuck() == (0,)
    p.scheduler.abort("a")
    p.scheduler.plan(502)
    assert p.scheduler._stuck() == (5,)
