from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.scheduler.base import MOST_RETRACTIONS
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.unified import UnifiedScheduler
from pdcore.errors import ApiError
from tests.engine.scheduler.simulation import STOP_TOKEN, Simulation, groups, limits, start

pytestmark = pytest.mark.unit


def simulation(blocks: int = 64, **kwargs: int) -> Simulation:
    pool = groups(blocks)
    return Simulation(UnifiedScheduler(limits(**kwargs), pool), pool)


def run_dry(sim: Simulation, most_steps: int = 2000) -> None:
    for _ in range(most_steps):
        if not sim.scheduler.has_computation:
            return
        sim.step()
    raise AssertionError(f"still busy after {most_steps} steps: {sim.scheduler.statistics()} {sim.blocks!r}")


def test_a_prompt_is_computed_in_chunks_and_sampled_once() -> None:
    sim = simulation(max_prefill_tokens=8)
    sim.scheduler.add(start("a", 20, max_tokens=1), 0)
    plans = []
    while sim.scheduler.has_computation:
        plan = sim.scheduler.plan(0)
        plans += [(c.start, len(c.token_ids), c.samples) for c in plan.batch]
        sim.scheduler.complete(plan.batch, {"a": 1})
    assert plans == [(0, 8, False), (8, 8, False), (16, 4, True)]
    assert sim.empty


def test_generation_goes_on_while_another_prompt_is_computed() -> None:
    sim = simulation(max_prefill_tokens=8)
    sim.scheduler.add(start("a", 4, max_tokens=10), 0)
    sim.step()
    sim.scheduler.add(start("b", 24, max_tokens=1), 0)
    plan = sim.scheduler.plan(0)
    assert [(c.request_id, len(c.token_ids)) for c in plan.batch] == [("a", 1), ("b", 8)]


def test_an_end_token_ends_the_request_unless_ignored() -> None:
    for ignore, expected in ((False, "stop"), (True, "length")):
        sim = simulation()
        sim.scheduler.add(start("a", 3, max_tokens=2, ignore_eos=ignore), 0)
        reasons = []
        while sim.scheduler.has_computation:
            batch = sim.scheduler.plan(0).batch
            reasons += [o.finish_reason for o in sim.scheduler.complete(batch, {"a": STOP_TOKEN}).outputs]
        assert reasons[-1] == expected


def test_the_context_limit_ends_a_request() -> None:
    sim = simulation(context_length=8)
    sim.scheduler.add(start("a", 5, max_tokens=100), 0)
    run_dry(sim)
    assert sim.finished == {"a": "length"}
    assert len(sim.tokens["a"]) == 3


def test_a_deadline_fails_the_request_wherever_it_is() -> None:
    sim = simulation(max_batch=1)
    sim.scheduler.add(start("runs", 5, remaining_ms=1000), 0)
    sim.scheduler.add(start("waits", 5, remaining_ms=1000), 0)
    sim.step()
    sim.now = 1.5
    sim.step()
    assert {(f.request_id, f.code) for f in sim.failures} == {
        ("runs", "deadline_exceeded"),
        ("waits", "deadline_exceeded"),
    }
    assert sim.empty


@pytest.mark.parametrize(
    ("prompt", "code"),
    [(0, "invalid_request"), (256, "context_length_exceeded"), (41, "context_length_exceeded")],
)
def test_what_can_never_run_is_refused_at_once(prompt: int, code: str) -> None:
    sim = simulation(blocks=10)
    with pytest.raises(ApiError) as refused:
        sim.scheduler.add(start("a", prompt), 0)
    assert refused.value.code == code
    assert not sim.scheduler.has_computation


def test_a_full_queue_and_a_running_name_are_refused() -> None:
    sim = simulation(max_queue=2)
    sim.scheduler.add(start("a", room=5), 0)
    for twice in (start("a"), start("other", room=5)):
        with pytest.raises(ApiError) as refused:
            sim.scheduler.add(twice, 0)
        assert refused.value.code == "room_in_use"
    sim.scheduler.add(start("b"), 0)
    with pytest.raises(ApiError) as refused:
        sim.scheduler.add(start("c"), 0)
    assert refused.value.code == "rate_limited"


def test_an_abort_between_plan_and_completion_loses_nothing() -> None:
    sim = simulation()
    sim.scheduler.add(start("a"), 0)
    plan = sim.scheduler.plan(0)
    assert sim.scheduler.abort("a")
    outcome = sim.scheduler.complete(plan.batch, {"a": 1})
    assert outcome.outputs == ()
    assert not sim.scheduler.abort("a")
    assert sim.empty


def test_a_request_that_outgrows_the_whole_cache_fails_alone() -> None:
    sim = simulation(blocks=4, reserved_tokens=0)
    sim.scheduler.add(start("a", 10, max_tokens=100), 0)
    run_dry(sim)
    assert [(f.request_id, f.code) for f in sim.failures] == [("a", "abort_oom")]
    assert sim.empty


def three_that_grow() -> Simulation:
    """``a`` has generated most; ``b`` and ``c`` as much as each other, ``c`` after the longer prompt."""
    sim = simulation(blocks=8, reserved_tokens=0, max_prefill_tokens=100)
    sim.scheduler.add(start("a", 6, max_tokens=30), 0)
    for _ in range(3):
        sim.step()
    sim.scheduler.add(start("b", 6, max_tokens=30), 0)
    sim.scheduler.add(start("c", 10, max_tokens=30), 0)
    sim.step()
    assert sim.scheduler.statistics().running == 3
    return sim


def test_the_victim_is_the_one_with_the_fewest_tokens_and_of_those_the_longest_prompt() -> None:
    sim = three_that_grow()
    while not sim.scheduler.statistics().retracted:
        sim.step()
    retracted = [r for r in "abc" if sim.scheduler.held(r).place is Place.RETRACTED]
    assert retracted == ["c"]
    assert sim.scheduler.statistics().retracted_total == 1


def test_one_that_was_retracted_three_times_is_not_retracted_again() -> None:
    sim = three_that_grow()
    sim.scheduler.held("c").retractions = MOST_RETRACTIONS
    while not sim.failures:
        sim.step()
    assert [(f.request_id, f.code) for f in sim.failures] == [("c", "preempted_oom")]
    assert sim.scheduler.statistics().running == 2
    assert sim.scheduler.statistics().retracted_total == 0


def test_what_a_failure_frees_is_used_in_the_same_step() -> None:
    sim = simulation(blocks=4, reserved_tokens=0)
    sim.scheduler.add(start("a", 14, max_tokens=100), 0)
    for _ in range(4):
        sim.step()
    sim.scheduler.add(start("b", 10, max_tokens=1), 0)
    plan = sim.scheduler.plan(0)
    assert [f.code for f in plan.fail] == ["abort_oom"]
    assert [item.request_id for item in plan.batch] == ["b"]


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.integers(4, 24),
    reserved=st.integers(0, 16),
    requests=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=20),
    aborted=st.sets(st.integers(0, 19)),
)
def test_every_request_ends_and_every_block_comes_back(
    blocks: int, reserved: int, requests: list[tuple[int, int]], aborted: set[int]
) -> None:
    sim = simulation(blocks=blocks, reserved_tokens=reserved)
    accepted: dict[str, int] = {}
    for number, (prompt, most) in enumerate(requests):
        try:
            sim.scheduler.add(start(str(number), prompt, max_tokens=most), 0)
        except ApiError:
            continue
        accepted[str(number)] = most
        sim.step()
        if number in aborted and sim.scheduler.abort(str(number)):
            del accepted[str(number)]
    run_dry(sim)
    failed = {f.request_id for f in sim.failures}
    for name, most in accepted.items():
        assert (name in failed) != (name in sim.finished)
        if name in sim.finished:
            assert len(sim.tokens[name]) == most
    assert sim.empty


def test_a_retracted_request_repeats_no_token_and_skips_none() -> None:
    sim = simulation(blocks=8, reserved_tokens=0)
    for name in ("a", "b", "c"):
        sim.scheduler.add(start(name, 6, max_tokens=14), 0)
    run_dry(sim)
    assert sim.scheduler.statistics().retracted_total > 0
    for name in sim.finished:
        assert sim.tokens[name] == [1000 + 6 + i for i in range(14)]
    assert set(sim.finished) | {f.request_id for f in sim.failures} == {"a", "b", "c"}
