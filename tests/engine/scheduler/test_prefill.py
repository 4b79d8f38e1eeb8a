from __future__ import annotations

import pytest

from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.errors import ApiError
from tests.engine.scheduler.simulation import Simulation, groups, limits, next_token, start

pytestmark = pytest.mark.unit


class Prefill:
    def __init__(self, blocks: int = 16) -> None:
        self.pool = groups(blocks)
        self.scheduler = PrefillScheduler(limits(), self.pool)
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
