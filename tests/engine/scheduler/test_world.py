"""Everything at once: whatever happens in whatever order, books balance, every request ends once, nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.places import MOVES, Place
from tests.engine.scheduler.simulation import limits
from tests.engine.scheduler.world import EVENTS, ROLES, Role, World, live

pytestmark = pytest.mark.unit

GROUPS = [(4,), (4, 3)]
KINDS = [
    pytest.param(role, per_chunk, id=f"{role}-per-chunk" if per_chunk else role)
    for role in ROLES
    for per_chunk in (False, True)
    if role == "prefill" or not per_chunk
]


class Rank(RuleBasedStateMachine):
    """Hypothesis plays clients and peers against one scheduler."""

    role: Role
    block_sizes: tuple[int, ...]
    per_chunk: bool

    @initialize(
        blocks=st.integers(6, 16), reserved=st.sampled_from([0, 1, 4, 64]), share=st.sampled_from([0.25, 1.0])
    )
    def start(self, blocks: int, reserved: int, share: float) -> None:
        bounds = limits(
            reserved_tokens=reserved, max_batch=5, slots=6, peer_share=share, total_share=2 * share
        )
        self.world = World(
            self.role,
            blocks=blocks,
            block_sizes=self.block_sizes,
            limits=bounds,
            per_chunk=self.per_chunk,
        )

    @rule(prompt=st.integers(1, 40), most=st.integers(1, 30), peer=st.sampled_from(["p0", "p1"]))
    def arrive(self, prompt: int, most: int, peer: str) -> None:
        self.world.arrive(prompt, most, peer=peer)

    @rule(prompt=st.integers(1, 20), remaining_ms=st.integers(1, 300))
    def arrive_in_a_hurry(self, prompt: int, remaining_ms: int) -> None:
        self.world.arrive(prompt, 30, remaining_ms=remaining_ms)

    @rule(index=st.integers(0, 9))
    def handshake(self, index: int) -> None:
        self.world.handshake(index)

    @rule(index=st.integers(0, 9), what=st.sampled_from(["deliver", "deliver", "fail", "drain"]))
    def answer(self, index: int, what: str) -> None:
        if self.world.transfers:
            key = list(self.world.transfers)[index % len(self.world.transfers)]
            getattr(self.world, what)(key)

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        held = list(self.world.scheduler._requests)
        if held:
            self.world.abort(held[index % len(held)])

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @rule(seconds=st.sampled_from([0.2, 1.0, 4.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.world.step(seconds)

    @rule()
    def scribble(self) -> None:
        self.world.scribble()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


@pytest.mark.parametrize("block_sizes", GROUPS)
@pytest.mark.parametrize(("role", "per_chunk"), KINDS)
def test_no_order_of_events_loses_a_block_or_a_request(
    role: Role, per_chunk: bool, block_sizes: tuple[int, ...]
) -> None:
    machine = type("Machine", (Rank,), {"role": role, "block_sizes": block_sizes, "per_chunk": per_chunk})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=12, stateful_step_count=30, deadline=None)
    )


@pytest.mark.parametrize("block_sizes", GROUPS)
@pytest.mark.parametrize(("role", "per_chunk"), KINDS)
def test_long_random_lives_leave_nothing_behind(
    role: Role, per_chunk: bool, block_sizes: tuple[int, ...]
) -> None:
    for seed in range(3):
        world = World(role, block_sizes=block_sizes, per_chunk=per_chunk)
        live(world, random.Random(seed), 400, EVENTS)
        world.settle()


# every place, every way to end


def _in_place(role: Role, place: Place) -> tuple[World, str] | None:
    """A world that has just brought a request to ``place``, and its name; None if this role never does."""
    for seed in range(2):
        world, dice = World(role), random.Random(seed)
        for _ in range(100):
            for request in world.scheduler._requests.values():
                if request.place is place:
                    return world, request.request_id
            live(world, dice, 1, EVENTS[:6])
    return None


FOUND = {
    (role, place): _in_place(role, place) for role in ROLES for place in Place if place is not Place.ENDED
}
REACHED = [pair for pair, found in FOUND.items() if found is not None]


def test_every_place_is_reached_by_some_role() -> None:
    assert {place for _, place in REACHED} == set(Place) - {Place.ENDED}
    assert set(MOVES) == set(Place)
    assert all(Place.ENDED in MOVES[place] for place in set(Place) - {Place.ENDED})


def _abort(world: World, name: str) -> None:
    world.abort(name)


def _expire(world: World, name: str) -> None:
    world.simulation.now = world.scheduler.held(name).deadline
    world.step()


def _peer_fails(world: World, name: str) -> None:
    key = next((t.key for t in world.transfers.values() if t.request_id == name), None)
    if key is not None:
        world.fail(key)
    else:
        world.abort(name)


ENDINGS: dict[str, Callable[[World, str], None]] = {"abort": _abort, "deadline": _expire, "peer": _peer_fails}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("role", "place"), REACHED)
def test_a_request_can_end_anywhere_and_its_memory_waits_for_the_last_write(
    role: Role, place: Place, ending: str
) -> None:
    found = _in_place(role, place)
    assert found is not None
    world, name = found
    request = world.scheduler.held(name)
    assert request.place is place
    owned = request.blocks
    ENDINGS[ending](world, name)
    assert world.scheduler.find(name) is None
    assert request.place is Place.ENDED
    if place is Place.TRANSFER:
        count = sum(map(len, owned))
        statistics = world.blocks.statistics()
        kept = (
            statistics.quarantined if isinstance(world.scheduler, DecodeScheduler) else statistics.lingering
        )
        assert kept >= count, "a write may still be under way"
    world.scribble()
    world.check()
    world.settle()


def test_moves_that_are_not_in_the_table_are_refused() -> None:
    world = World("unified")
    name = world.arrive(5)
    assert name is not None
    request = world.scheduler.held(name)
    for place in set(Place) - MOVES[Place.PREALLOC]:
        with pytest.raises(ValueError, match="cannot go from PREALLOC"):
            request.move(place)
        assert request.place is Place.PREALLOC


# no hang


@pytest.mark.parametrize(
    ("role", "block_sizes"), [("unified", (4,)), ("prefill", (4,)), ("decode", (4,)), ("decode", (4, 3))]
)
def test_two_hundred_mixed_requests_finish_in_eight_blocks(role: Role, block_sizes: tuple[int, ...]) -> None:
    dice = random.Random(5)
    world = World(role, block_sizes=block_sizes, limits=limits(max_batch=8, peer_share=0.25, total_share=0.5))
    capacity = world.blocks.tokens
    too_large = set()
    for _ in range(200):
        prompt, most = dice.randint(1, capacity - 1), dice.randint(1, 31)
        name = world.arrive(prompt, most, peer=dice.choice(["p0", "p1"]))
        assert name is not None
        if role != "prefill" and prompt + most - 1 > capacity:
            too_large.add(name)
    world.settle()
    assert {f.request_id for f in world.simulation.failures if f.code == "abort_oom"} == too_large
    assert len(world.simulation.failures) == len(too_large), "nobody else fails"
    assert len(world.simulation.finished) == 200 - len(too_large)
