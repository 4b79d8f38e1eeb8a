from __future__ import annotations

import msgspec
import pytest

from pdcore.engine.messages import Output, Start
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.plan import Admit
from tests.engine.scheduler import simulation
from tests.engine.scheduler.simulation import STOP_TOKEN, Simulation, groups, limits
from tests.engine.scheduler.world import prefill

pytestmark = pytest.mark.unit


def start(name: str, prompt: int = 5, *, room: int, max_tokens: int = 4, remaining_ms: int = 60_000) -> Start:
    bare = simulation.start(name, prompt, room=room, max_tokens=max_tokens, remaining_ms=remaining_ms)
    return msgspec.structs.replace(bare, prefill=prefill("p0"))


class Decode:
    def __init__(self, blocks: int = 16, **kwargs: int) -> None:
        self.pool = groups(blocks)
        self.scheduler = DecodeScheduler(limits(**kwargs), self.pool)
        self.simulation = Simulation(self.scheduler, self.pool)

    def admit(self) -> tuple[Admit, ...]:
        return self.scheduler.plan(self.simulation.now).admit

    def open(self) -> list[int]:
        """Compute what a plan says, and the names of the hand-offs it admits."""
        plan = self.scheduler.plan(self.simulation.now)
        for item in plan.admit:
            request = self.scheduler.held(item.request_id)
            self.simulation.follower.arrive(item.request_id, item.blocks, len(request.start.prompt))
        self.simulation.perform(plan)
        return [item.handoff for item in plan.admit]

    def arrive(self, handoff: int, token: int, kv_len: int) -> Output:
        """The KV of a request that waits for it."""
        arrived = self.scheduler.arrived(handoff, token, kv_len)
        assert arrived is not None
        output = arrived[1]
        self.simulation.note(output.request_id, output.token_ids, output.finish_reason)
        return output

    @property
    def empty(self) -> bool:
        return self.simulation.empty


def test_a_request_is_admitted_with_blocks_for_its_prompt() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (item,) = d.admit()
    assert len(item.blocks[0]) == 2, "the destination holds the prompt"
    assert d.pool.statistics().used == 3, "and the request one token more"


def test_the_kv_arrives_and_the_request_generates() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1, max_tokens=3), 0)
    (handoff,) = d.open()
    assert d.arrive(handoff, 42, 8).token_ids == (42,)
    while d.scheduler.has_computation:
        d.simulation.step()
    assert d.simulation.tokens["a"] == [42, 1009, 1010]
    assert d.simulation.finished == {"a": "length"}
    assert d.empty


@pytest.mark.parametrize(("token", "most", "reason"), [(42, 1, "length"), (STOP_TOKEN, 5, "stop")])
def test_a_first_token_can_be_the_last(token: int, most: int, reason: str) -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1, max_tokens=most), 0)
    (handoff,) = d.open()
    assert d.arrive(handoff, token, 8).finish_reason == reason
    assert not d.scheduler.has_computation
    assert d.empty


@pytest.mark.parametrize("ending", ["failed", "abort"])
def test_blocks_of_a_hand_off_that_ended_early_wait_for_drained(ending: str) -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (handoff,) = d.open()
    if ending == "failed":
        assert d.scheduler.failed(handoff) is not None
        assert d.scheduler.failed(handoff) is None
    else:
        assert d.scheduler.handoff_of("a") == handoff
        assert d.scheduler.abort("a")
    statistics = d.pool.statistics()
    assert (statistics.used, statistics.quarantined) == (0, 3)
    d.scheduler.drained(handoff)
    assert d.empty


def test_an_arrival_after_the_end_frees_the_blocks() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (handoff,) = d.open()
    d.scheduler.abort("a")
    assert d.scheduler.arrived(handoff, 42, 8) is None
    assert d.empty


def test_a_quarantined_hand_off_keeps_its_slot() -> None:
    d = Decode(slots=1)
    d.scheduler.add(start("a", room=1), 0)
    d.scheduler.add(start("b", room=2), 0)
    (handoff,) = d.open()
    d.scheduler.abort("a")
    assert d.admit() == ()
    d.scheduler.drained(handoff)
    assert [item.request_id for item in d.admit()] == ["b"]


def test_a_request_whose_kv_is_on_its_way_has_its_place_in_the_batch() -> None:
    d = Decode(max_batch=2)
    for room in (1, 2, 3):
        d.scheduler.add(start(str(room), room=room), 0)
    first, second = d.open()
    d.arrive(first, 42, 5)
    assert d.open() == []
    d.scheduler.failed(second)
    assert len(d.open()) == 1, "one in quarantine will not come back"


def test_growth_of_the_admitted_is_kept_free() -> None:
    d = Decode(blocks=6, reserved_tokens=4)
    for room in (1, 2):
        d.scheduler.add(start(str(room), 7, room=room, max_tokens=50), 0)
    assert [item.request_id for item in d.admit()] == ["1", "2"]
    d = Decode(blocks=5, reserved_tokens=8)
    for room in (1, 2):
        d.scheduler.add(start(str(room), 7, room=room, max_tokens=50), 0)
    assert [item.request_id for item in d.admit()] == ["1"]


def test_a_deadline_ends_a_request_whose_kv_is_on_its_way_and_keeps_its_memory() -> None:
    d = Decode()
    d.scheduler.add(start("a", room=1, remaining_ms=1000), 0)
    (handoff,) = d.open()
    (failure,) = d.scheduler.plan(5).fail
    assert (failure.request_id, failure.code, failure.handoff) == ("a", "deadline_exceeded", handoff)
    assert d.pool.statistics().quarantined == 2
    assert d.scheduler.arrived(handoff, 42, 5) is None
    assert d.empty
