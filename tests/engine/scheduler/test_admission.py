"""Who gets memory: exactly who fits, nobody for ever behind others, nobody held up by a peer that is not his."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.scheduler.line import LONGEST_OVERTAKEN_S, LOOK_AHEAD, MOST_OVERTAKEN
from pdcore.engine.scheduler.places import Place
from tests.engine.scheduler.simulation import limits
from tests.engine.scheduler.world import Role, World

pytestmark = pytest.mark.unit

WITH_GROWTH: list[Role] = ["unified", "decode"]


def admitted(world: World) -> list[str]:
    """Who has blocks."""
    return [
        r.request_id for r in world.scheduler._requests.values() if r.place in (Place.RUNNING, Place.TRANSFER)
    ]


@settings(max_examples=60, deadline=None)
@given(
    role=st.sampled_from(WITH_GROWTH),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    reserved=st.sampled_from([0, 1, 5, 64]),
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 80)), min_size=1, max_size=12),
)
def test_a_request_is_admitted_iff_it_fits_beside_everybodys_growth(
    role: Role, sizes: list[int], reserved: int, requests: list[tuple[int, int]]
) -> None:
    world = World(role, blocks=16, block_sizes=sizes, limits=limits(reserved_tokens=reserved))
    free, growth, expected = [16] * len(sizes), [0] * len(sizes), []
    for prompt, most in requests:
        name = world.arrive(prompt, most)
        needed = [-(-(prompt + 1) // size) for size in sizes]
        assert (name is None) == any(n > 16 for n in needed)
        if name is not None and all(n <= f - g for n, f, g in zip(needed, free, growth, strict=True)):
            expected.append(name)
            free = [f - n for f, n in zip(free, needed, strict=True)]
            growth = [g + -(-min(reserved, most) // size) for g, size in zip(growth, sizes, strict=True)]
    world.scheduler.plan(0)
    assert admitted(world) == expected


@pytest.mark.parametrize("role", WITH_GROWTH)
def test_a_request_that_does_not_fit_holds_up_nobody(role: Role) -> None:
    world = World(role, blocks=8)
    first = world.arrive(19, 9)
    world.arrive(20, 9)
    small = world.arrive(3, 4)
    world.step()
    assert admitted(world) == [first, small]


def _deliver_all(world: World) -> None:
    for key in [key for key, transfer in world.transfers.items() if not transfer.over]:
        world.deliver(key)


@pytest.mark.parametrize("role", WITH_GROWTH)
def test_a_large_request_does_not_starve_behind_endless_small_ones(role: Role) -> None:
    world = World(role, blocks=20, limits=limits(max_batch=50, slots=50))
    for _ in range(9):
        world.arrive(4, 6)
    world.step()
    large = world.arrive(63, 2)
    assert large is not None
    entered_before = 0
    for _ in range(500):
        if large in admitted(world):
            break
        if world.scheduler.statistics().prealloc < 3:
            world.arrive(4, 6)
        before = set(admitted(world))
        _deliver_all(world)
        world.step()
        entered_before += len(set(admitted(world)) - before - {large})
    assert large in admitted(world)
    assert MOST_OVERTAKEN <= entered_before <= MOST_OVERTAKEN + 9
    world.settle()


@pytest.mark.parametrize("role", WITH_GROWTH)
def test_a_large_request_holds_the_line_after_a_while_even_when_few_pass(role: Role) -> None:
    world = World(role, blocks=10)
    runs = world.arrive(4, 250)
    world.step()
    large = world.arrive(31, 2)
    small = world.arrive(2, 1)
    world.step()
    assert large not in admitted(world)
    assert small is not None
    _deliver_all(world)
    world.step(LONGEST_OVERTAKEN_S)
    late = world.arrive(2, 1)
    world.step()
    assert late not in admitted(world), "the line is held"
    assert runs is not None
    world.abort(runs)
    if role == "decode":
        world.drain(next(iter(world.transfers), 0)) if world.transfers else None
    world.step()
    assert large in admitted(world)
    world.settle()


@pytest.mark.parametrize("role", WITH_GROWTH)
def test_a_retracted_request_waits_behind_fresh_ones_but_not_for_ever(role: Role) -> None:
    world = World(role, blocks=8, limits=limits(reserved_tokens=0, max_batch=4))
    for _ in range(3):
        world.arrive(9, 14)
    retracted: str | None = None
    came_back = False
    for _ in range(600):
        if world.scheduler.statistics().prealloc < 2:
            world.arrive(9, 3)
        _deliver_all(world)
        world.step()
        requests = world.scheduler._requests
        if retracted is None:
            retracted = next((r.request_id for r in requests.values() if r.place is Place.RETRACTED), None)
        elif retracted not in requests or requests[retracted].place is Place.RUNNING:
            came_back = True
            break
    assert retracted is not None
    assert came_back
    world.settle()
    assert world.simulation.tokens[retracted] == [42] * (role == "decode") + [
        1000 + position for position in range(9 + (role == "decode"), 9 + 14)
    ] or retracted in {f.request_id for f in world.simulation.failures}


def test_a_deep_line_is_looked_at_only_so_far() -> None:
    world = World("unified", blocks=8)
    world.arrive(16, 9)
    world.step()
    for _ in range(LOOK_AHEAD):
        world.arrive(25, 9)
    world.arrive(2, 1)
    world.step()
    assert len(admitted(world)) == 1
    world.settle()


def test_everybody_who_fits_enters_at_once() -> None:
    world = World("unified", blocks=500, limits=limits(max_batch=200))
    for _ in range(150):
        world.arrive(2, 3)
    world.step()
    assert len(admitted(world)) == 150


# peers


def decode(blocks: int = 40, *, peer_share: float = 0.25, total_share: float = 0.5) -> World:
    bounds = limits(max_batch=64, slots=64, peer_share=peer_share, total_share=total_share, reserved_tokens=0)
    return World("decode", blocks=blocks, limits=bounds)


def test_a_peer_that_does_not_answer_has_its_share_and_the_others_go_on() -> None:
    world = decode()
    for _ in range(10):
        world.arrive(7, 9, peer="stuck")
    assert world.step() is not None
    assert len(world.transfers) == 5, "10 of 40 blocks"
    for _ in range(50):
        world.arrive(7, 3, peer="well")
        world.step()
        for key in [k for k, t in world.transfers.items() if t.peer == "well"]:
            world.deliver(key)
    assert sum(t.peer == "stuck" for t in world.transfers.values()) == 5
    done = [name for name, why in world.simulation.finished.items() if why == "length"]
    assert len(done) >= 48
    world.settle()


def test_a_peer_that_does_not_answer_has_no_more_than_its_share_of_the_batch() -> None:
    bounds = limits(max_batch=8, slots=64, peer_share=0.25, total_share=0.5)
    world = World("decode", blocks=1000, limits=bounds)
    for _ in range(20):
        world.arrive(2, 9, peer="stuck")
    world.step()
    assert len(world.transfers) == 2
    for _ in range(6):
        world.arrive(2, 3, peer="well")
    for _ in range(12):
        world.step()
        for key in [k for k, t in world.transfers.items() if t.peer == "well"]:
            world.deliver(key)
    assert len(world.simulation.finished) == 6
    world.settle()


def test_requests_that_a_peers_share_keeps_out_are_refused_after_a_while() -> None:
    world = decode()
    names = [world.arrive(7, 9, peer="stuck") for _ in range(8)]
    world.step()
    world.step(4.0)
    assert world.simulation.failures == []
    world.step(1.1)
    assert [(f.request_id, f.code) for f in world.simulation.failures] == [
        (n, "peer_backlog") for n in names[5:]
    ]
    world.settle()


def test_a_peer_that_goes_on_slowly_refuses_nobody() -> None:
    world = decode()
    for _ in range(30):
        world.arrive(7, 1, peer="slow")
    for _ in range(30):
        world.step(1.0)
        world.deliver(next(iter(world.transfers)))
    assert world.simulation.failures == []
    assert len(world.simulation.finished) == 30


def test_all_peers_together_leave_half_of_the_memory() -> None:
    world = decode()
    for peer in ("a", "b", "c"):
        for _ in range(5):
            world.arrive(7, 9, peer=peer)
    world.step()
    assert {t.peer for t in world.transfers.values()} == {"a", "b"}
    world.step(6.0)
    assert {(f.code) for f in world.simulation.failures} == {"backend_unavailable"}
    world.settle()


def test_an_aged_request_does_not_hold_the_line_for_memory_that_is_stuck_with_a_peer() -> None:
    world = decode(peer_share=0.5, total_share=1.0)
    stuck = [world.arrive(39, 9, peer="stuck") for _ in range(2)]
    world.step()
    large = world.arrive(120, 9, peer="well")
    for _ in range(60):
        world.arrive(7, 1, peer="well")
        world.step(0.1)
        for key in [k for k, t in world.transfers.items() if t.peer == "well"]:
            world.deliver(key)
    assert large not in admitted(world)
    assert len(world.simulation.finished) >= 55, "small ones pass for as long as holding would not help"
    for name in stuck:
        assert name is not None
        world.abort(name)
    for key in list(world.transfers):
        world.drain(key)
    world.step()
    assert large in admitted(world)
    world.settle()


def test_that_a_peer_is_stuck_is_noticed_though_nothing_moves() -> None:
    world = decode(peer_share=1.0, total_share=1.0)
    world.arrive(39, 200, peer="well")
    world.step()
    world.deliver(1)
    large, small = world.arrive(139, 9, peer="well"), world.arrive(7, 9, peer="well")
    world.step()
    world.deliver(2)
    assert small in admitted(world)
    world.step(LONGEST_OVERTAKEN_S - 0.5)
    world.arrive(79, 9, peer="stuck")
    world.step()
    world.step(0.6)
    late = world.arrive(7, 9, peer="well")
    world.step()
    assert late not in admitted(world), "the large one holds the line"
    world.step(0.5)
    assert late in admitted(world), "which does not help it any more"
    assert large not in admitted(world)
    world.settle()


def test_a_peer_whose_memory_stays_in_quarantine_is_ended_once_and_then_this_instance() -> None:
    world = decode()
    for peer in ("stuck", "well"):
        world.arrive(7, 9, peer=peer, remaining_ms=1000)
    world.step()
    world.step(1.0)
    assert {f.code for f in world.simulation.failures} == {"deadline_exceeded"}
    assert world.blocks.statistics().quarantined == 4
    world.drain(next(k for k, t in world.transfers.items() if t.peer == "well"))
    world.step(14.9)
    assert world.ended_peers == []
    world.step(0.2)
    world.step(5.0)
    (ended,) = world.ended_peers
    assert (ended.instance_id, ended.incarnation) == ("stuck", "i1")
    assert ended.age_s >= 15
    assert world.restart is None
    world.step(15.1)
    assert world.restart is not None
    assert "stuck" in world.restart
    world.drain(next(iter(world.transfers)))
    world.step()
    assert world.restart is None
    world.settle()
