from __future__ import annotations

import random

import pytest

from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.plan import Admit
from tests.engine.scheduler.simulation import STOP_TOKEN, Simulation, limits, start

pytestmark = pytest.mark.unit


class Decode:
    def __init__(self, blocks: int = 16, **kwargs: int) -> None:
        self.pool = BlockPool(blocks)
        self.scheduler = DecodeScheduler(limits(**kwargs), self.pool)
        self.simulation = Simulation(self.scheduler, self.pool)
        self.seq = 0

    def admit(self) -> tuple[Admit, ...]:
        return self.scheduler.plan(self.simulation.now).admit

    def open(self) -> list[int]:
        """Open everything admitted, and compute what the same plan says; the seqs."""
        seqs = []
        plan = self.scheduler.plan(self.simulation.now)
        self.simulation.perform(plan)
        for item in plan.admit:
            self.seq += 1
            self.scheduler.opened(item.request_id, self.seq)
            seqs.append(self.seq)
        return seqs

    @property
    def empty(self) -> bool:
        return self.pool.free_blocks == self.pool.total


def test_a_request_is_admitted_with_blocks_for_its_prompt() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (item,) = d.admit()
    assert len(item.blocks) == 2, "the destination holds the prompt"
    assert d.pool.statistics().used == 3, "and the request one token more"


def test_the_kv_arrives_and_the_request_generates() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1, max_tokens=3), 0)
    (seq,) = d.open()
    arrived = d.scheduler.arrived(seq, 42, 8)
    assert arrived is not None
    assert arrived[1].token_ids == (42,)
    while d.scheduler.has_computation:
        d.simulation.step()
    assert d.simulation.tokens["a"] == [1009, 1010]
    assert d.simulation.finished == {"a": "length"}
    assert d.empty


@pytest.mark.parametrize(("token", "most", "reason"), [(42, 1, "length"), (STOP_TOKEN, 5, "stop")])
def test_a_first_token_can_be_the_last(token: int, most: int, reason: str) -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1, max_tokens=most), 0)
    (seq,) = d.open()
    arrived = d.scheduler.arrived(seq, token, 8)
    assert arrived is not None
    assert arrived[1].finish_reason == reason
    assert not d.scheduler.has_computation
    assert d.empty


@pytest.mark.parametrize("ending", ["failed", "abort"])
def test_blocks_of_a_hand_off_that_ended_early_wait_for_drained(ending: str) -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (seq,) = d.open()
    if ending == "failed":
        assert d.scheduler.failed(seq) is not None
        assert d.scheduler.failed(seq) is None
    else:
        assert d.scheduler.seq_of("a") == seq
        assert d.scheduler.abort("a")
    statistics = d.pool.statistics()
    assert (statistics.used, statistics.quarantined) == (0, 3)
    d.scheduler.drained(seq)
    assert d.empty


def test_an_arrival_after_the_end_frees_the_blocks() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (seq,) = d.open()
    d.scheduler.abort("a")
    assert d.scheduler.arrived(seq, 42, 8) is None
    assert d.empty


def test_a_hand_off_that_could_not_be_asked_for_frees_its_blocks() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    (item,) = d.admit()
    d.scheduler.not_opened(item.request_id)
    assert d.empty
    assert d.scheduler.find("a") is None


def test_a_postponed_request_is_first_in_line_and_holds_up_nobody() -> None:
    d = Decode()
    d.scheduler.add(start("a", 8, room=1), 0)
    d.scheduler.add(start("b", 8, room=2), 0)
    assert [item.request_id for item in d.admit()] == ["a", "b"]
    d.scheduler.postponed("a")
    d.scheduler.opened("b", 1)
    assert [item.request_id for item in d.admit()] == ["a"]


def test_a_quarantined_hand_off_keeps_its_slot() -> None:
    d = Decode(slots=1)
    d.scheduler.add(start("a", room=1), 0)
    d.scheduler.add(start("b", room=2), 0)
    (seq,) = d.open()
    d.scheduler.abort("a")
    assert d.admit() == ()
    d.scheduler.drained(seq)
    assert [item.request_id for item in d.admit()] == ["b"]


def test_growth_of_the_admitted_is_kept_free() -> None:
    d = Decode(blocks=6, reserved_tokens=4)
    for room in (1, 2):
        d.scheduler.add(start(str(room), 7, room=room, max_tokens=50), 0)
    assert [item.request_id for item in d.admit()] == ["1", "2"]
    d = Decode(blocks=5, reserved_tokens=8)
    for room in (1, 2):
        d.scheduler.add(start(str(room), 7, room=room, max_tokens=50), 0)
    assert [item.request_id for item in d.admit()] == ["1"]


def test_a_hand_offs_deadline_is_the_sessions_business() -> None:
    d = Decode()
    d.scheduler.add(start("a", room=1, remaining_ms=1000), 0)
    d.open()
    assert d.scheduler.plan(5).fail == ()
    d.scheduler.add(start("b", 63, room=2, remaining_ms=1000), 0)
    assert [f.request_id for f in d.scheduler.plan(5).fail] == ["b"]


@pytest.mark.parametrize("seed", range(20))
def test_random_endings_lose_no_block_and_no_request(seed: int) -> None:
    dice = random.Random(seed)
    d = Decode(blocks=24, slots=6, reserved_tokens=dice.choice([0, 4, 16]))
    under_way: list[int] = []
    undrained: list[int] = []
    for number in range(40):
        d.scheduler.add(
            start(str(number), dice.randint(1, 20), room=number + 1, max_tokens=dice.randint(1, 30)), 0
        )
    for _ in range(3000):
        under_way += d.open()
        if under_way and dice.random() < 0.6:
            seq = under_way.pop(dice.randrange(len(under_way)))
            match dice.choice(["arrive", "arrive", "fail", "abort"]):
                case "arrive":
                    request = d.scheduler._transferring[seq]
                    d.scheduler.arrived(seq, 42, len(request.start.prompt))
                case "fail":
                    d.scheduler.failed(seq)
                    undrained.append(seq)
                case "abort":
                    d.scheduler.abort(d.scheduler._transferring[seq].request_id)
                    undrained.append(seq)
        if undrained and dice.random() < 0.5:
            d.scheduler.drained(undrained.pop())
        if not d.scheduler.has_computation and not under_way and not undrained:
            break
    assert d.empty, d.pool
    assert d.scheduler.find("0") is None
