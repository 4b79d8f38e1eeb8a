"""A group comes to what its plan says: started, scaled, restarted; also when everything dies after any single step."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pdcore.group.control import changing, deciding
from pdcore.group.control.changing import Conflict, Restarting
from pdcore.group.control.deciding import Prove, Revise
from pdcore.group.control.generation import frozen
from pdcore.group.control.keeping import Claim
from pdcore.group.control.members import Member
from pdcore.group.control.plan import RestartKind
from tests.group.control.world import GROUP, PACKAGE, Supervisor, World, spec

pytestmark = pytest.mark.unit

START = {(1, "prefill"): 2, (1, "decode"): 1, (0, "router"): 1}
SECOND = {(2, "prefill"): 2, (2, "decode"): 1, (0, "router"): 1}


def scale(world: World, prefill: int, decode: int) -> None:
    world.plan = changing.scaled(GROUP, world.plan, {"prefill": prefill, "decode": decode}, None)
    world.revision += 1


def restart(world: World, kind: RestartKind, deadline_s: float = 300.0) -> None:
    number = changing.next_number(world.generations)
    world.generations[number] = frozen(spec(), number, PACKAGE)
    asked = Restarting(kind=kind, by="test", proof="secret", deadline_s=deadline_s)
    world.plan = changing.restarted(GROUP, world.plan, number, asked, world.now)
    world.revision += 1


def started() -> World:
    world = World()
    world.settle()
    return world


def test_a_group_starts_with_all_its_members_at_once() -> None:
    world = World()
    changes = [step for step in world.steps(world.supervisors[0]) if isinstance(step, Revise)]
    assert [len(step.plan.members) for step in changes] == [4]
    world.settle()
    assert world.ready() == START
    assert world.plan.restart is None


def test_free_slots_are_claimed_together() -> None:
    world = World()
    done = [step for _ in range(4) for step in world.steps(world.supervisors[0])]
    claims = [step for step in done if isinstance(step, Claim)]
    assert [sorted(claim.members) for claim in claims] == [sorted(world.plan.members)]


def test_a_crashed_member_comes_back_on_its_generation() -> None:
    world = started()
    world.generations[2] = frozen(spec(backend_parameters=["--max-model-len=64"]), 2, PACKAGE)
    world.crash(Member(1, "prefill", 1))
    world.settle()
    assert world.ready() == START


def test_scaling_up_restarts_nobody() -> None:
    world = started()
    before = dict(world.registered)
    scale(world, 3, 2)
    world.settle()
    assert world.ready() == {(1, "prefill"): 3, (1, "decode"): 2, (0, "router"): 1}
    assert before.items() <= world.registered.items()


def test_scaling_down_takes_who_has_least_to_do_and_waits_until_that_is_done() -> None:
    world = started()
    scale(world, 3, 1)
    world.settle()
    names = [Member(1, "prefill", n).name_in(GROUP) for n in (1, 2, 3)]
    world.busy = {names[0]: 3, names[1]: 1, names[2]: 2}
    scale(world, 2, 1)
    for _ in range(10):
        world.work(world.supervisors[0])
    assert list(world.plan.leaving) == [Member(1, "prefill", 2)]
    assert Member(1, "prefill", 2) in world.registered, "it holds a request"
    world.busy[names[1]] = 0
    world.settle()
    assert sorted(one.number for one in world.registered if one.role == "prefill") == [1, 3]
    assert not world.plan.leaving


def test_a_member_that_does_not_finish_goes_when_its_time_is_up() -> None:
    world = started()
    world.busy = {Member(1, "prefill", n).name_in(GROUP): 1 for n in (1, 2)}
    scale(world, 1, 1)
    for _ in range(10):
        world.work(world.supervisors[0])
    assert len(world.plan.leaving) == 1
    world.now += world.plan.drain_limit_s
    world.settle()
    assert world.ready()[1, "prefill"] == 1


def test_scaling_down_can_be_undone_while_it_drains() -> None:
    world = started()
    before = dict(world.registered)
    world.busy = {Member(1, "prefill", n).name_in(GROUP): 1 for n in (1, 2)}
    scale(world, 1, 1)
    for _ in range(10):
        world.work(world.supervisors[0])
    assert world.orders
    world.plan = changing.undone(GROUP, world.plan)
    world.settle()
    assert world.registered == before
    assert not world.orders
    with pytest.raises(Conflict, match="no member of chat is on its way out"):
        changing.undone(GROUP, world.plan)


def test_a_plain_restart_stops_everybody_before_anybody_starts() -> None:
    world = started()
    restart(world, "stop-start")
    both = []
    for _ in range(40):
        world.work(world.supervisors[0])
        both.append({one.generation for one in world.registered if one.generation})
    assert {1, 2} not in both
    world.settle()
    assert world.ready() == SECOND
    assert world.plan.last_restart is not None
    assert world.plan.last_restart.result == "done"


def test_a_candidate_is_asked_and_every_router_has_switched_before_the_old_ones_go() -> None:
    world = started()
    restart(world, "blue-green")
    done: list[object] = []
    for _ in range(40):
        before = len(done)
        done += world.steps(world.supervisors[0])
        drained = [one for one in done[before:] if getattr(one, "kind", "") == "drain"]
        if drained:
            break
    names = [type(one).__name__ for one in done if not isinstance(one, Revise)]
    assert names.index("Prove") < names.index("AskRouters") < names.index("Command")
    world.settle()
    assert world.ready() == SECOND
    assert world.plan.active == 2
    assert world.plan.candidate is None


def test_a_candidate_that_cannot_start_is_given_up_and_nobody_notices() -> None:
    world = started()
    before = dict(world.registered)
    world.broken = {2}
    restart(world, "blue-green")
    world.settle()
    assert world.registered == before
    assert world.plan.active == 1
    assert world.plan.last_restart is not None
    assert world.plan.last_restart.result == "rolled back"
    assert "cannot start: no such flag" in world.plan.last_restart.why


def test_a_candidate_that_is_not_proven_in_time_is_given_up() -> None:
    world = started()
    restart(world, "blue-green", deadline_s=0.0)
    world.settle()
    assert world.ready() == START
    assert world.plan.last_restart is not None
    assert "by its deadline" in world.plan.last_restart.why


def test_a_second_restart_while_one_runs_is_a_conflict() -> None:
    world = started()
    restart(world, "blue-green")
    with pytest.raises(Conflict, match="a blue-green restart of chat to generation 2 by test is under way"):
        restart(world, "stop-start")
    with pytest.raises(Conflict, match="scale it when that is over"):
        scale(world, 3, 3)


def test_a_restart_that_never_ends_lapses() -> None:
    world = started()
    world.broken = {2}
    restart(world, "stop-start")
    for _ in range(60):
        world.work(world.supervisors[0])
        world.now += 30.0
    assert world.plan.restart is None
    assert world.plan.last_restart is not None
    assert world.plan.last_restart.result == "lapsed"


def broken(world: World) -> None:
    world.broken = {2}
    restart(world, "blue-green")


CHANGES: dict[str, Callable[[World], None]] = {
    "start": lambda world: None,
    "scale up": lambda world: scale(world, 3, 2),
    "scale down": lambda world: scale(world, 1, 1),
    "restart": lambda world: restart(world, "stop-start"),
    "blue-green": lambda world: restart(world, "blue-green"),
    "broken candidate": broken,
}


@pytest.mark.parametrize("change", CHANGES)
def test_whoever_dies_after_any_step_is_continued(change: str) -> None:
    """The supervisor, its processes and its controller die after step k, for every k; the end is the same."""
    untouched = _changed(change)
    untouched.settle()
    for after in itertools.count():
        world = _changed(change)
        if not _dies_after(world, after):
            break
        world.settle()
        assert world.ready() == untouched.ready(), f"after step {after}"
        assert world.plan.active == untouched.plan.active
        assert world.plan.restart is None
        assert not world.plan.leaving
        assert sorted(world.slots) == sorted(untouched.slots) == sorted(world.plan.members)
    assert after > 3


def _changed(change: str) -> World:
    world = World()
    if change != "start":
        world.settle()
    CHANGES[change](world)
    return world


def _dies_after(world: World, steps: int) -> bool:
    """Let everything die after so many steps; False when there are not so many."""
    (one,) = world.supervisors
    done = 0
    for _ in range(60):
        for _ in world.steps(one):
            done += 1
            if done > steps:
                world.kill(one)
                return True
    return False


@pytest.mark.parametrize("change", CHANGES)
def test_two_supervisors_run_no_member_twice(change: str) -> None:
    """Both look before either acts; what one decided on an older plan is not written. ``World`` asserts the rest."""
    world = World(supervisors=[Supervisor("a"), Supervisor("b")])
    if change != "start":
        world.settle()
    CHANGES[change](world)
    for _ in range(60):
        looks = [iter(world.steps(one)) for one in world.supervisors]
        for step in itertools.zip_longest(*looks):
            assert step is not None
    world.settle()
    alone = _changed(change)
    alone.settle()
    assert world.ready() == alone.ready()
    assert world.plan.restart is None


def test_what_was_asked_is_asked_again_by_whoever_takes_over() -> None:
    world = started()
    restart(world, "blue-green")
    asked = 0
    for _ in range(40):
        for step in world.steps(world.supervisors[0]):
            if isinstance(step, Prove):
                asked += 1
                world.kill(world.supervisors[0])
                break
        if asked:
            break
    world.settle()
    assert world.plan.active == 2


def test_a_group_of_64_members_is_brought_up_in_less_than_a_second_of_cpu() -> None:
    world = World()
    world.plan = changing.first_plan({"prefill": 40, "decode": 22, "router": 2})
    world.settle()
    assert len(world.registered) == 64
    assert world.cpu_s < 1.0


def test_a_deleted_group_goes_with_its_last_member_whatever_was_under_way() -> None:
    world = started()
    restart(world, "blue-green")
    for _ in range(3):
        world.work(world.supervisors[0])
    world.busy = {Member(1, "decode", 1).name_in(GROUP): 1}
    world.plan = changing.deleted(world.plan, None, world.now)
    world.revision += 1
    for _ in range(10):
        world.work(world.supervisors[0])
    assert set(world.registered) == {Member(1, "decode", 1)}, "it has something to finish"
    assert not world.erased
    world.busy.clear()
    for _ in range(10):
        world.work(world.supervisors[0])
    assert world.erased
    assert not world.registered
    assert not world.slots
    with pytest.raises(Conflict, match="chat is being deleted"):
        scale(world, 1, 1)
    with pytest.raises(Conflict, match="chat is being deleted"):
        changing.rescaled(GROUP, world.plan, None, {"prefill": 9})


def test_generations_that_are_over_are_forgotten_but_for_the_newest() -> None:
    world = started()
    for _ in range(deciding.KEPT_GENERATIONS + 3):
        restart(world, "blue-green")
        world.settle()
    assert world.plan.active == deciding.KEPT_GENERATIONS + 4
    newest = range(world.plan.active - deciding.KEPT_GENERATIONS, world.plan.active + 1)
    assert sorted(world.generations) == list(newest)
