"""What a step costs, counted in calls, because time on a shared machine proves nothing."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.unified import UnifiedScheduler
from tests.engine.scheduler.simulation import groups, start

pytestmark = pytest.mark.unit

RUNNING = 64


def calls_of_a_step(waiting: int, known: int = 100, *, arrives: bool = False) -> int:
    """Calls, of Python functions and of C functions, of a plan and its completion with everybody generating.

    ``waiting`` do not fit; with ``arrives`` one more of them has just come, so that all are to be judged anew.
    """
    limits = SchedulerLimits(
        context_length=1 << 20,
        max_batch=2 * RUNNING,
        max_prefill_tokens=1 << 20,
        max_queue=1 << 20,
        reserved_tokens=64,
        slots=RUNNING,
    )
    blocks = groups(RUNNING * (known // 16 + 5), 16)
    scheduler = UnifiedScheduler(limits, blocks)
    for number in range(RUNNING):
        scheduler.add(start(f"r{number}", known, max_tokens=10_000), 0)
    _step(scheduler, 0)
    assert scheduler.statistics().running == RUNNING
    large = tuple(range(blocks.tokens - 1))
    for number in range(waiting):
        scheduler.add(start(f"w{number}", large, max_tokens=100), 0)
    _step(scheduler, 0)
    if arrives:
        scheduler.add(start("late", large, max_tokens=100), 0)
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        _step(scheduler, 0.01)
    finally:
        sys.setprofile(None)
    assert scheduler.statistics().prealloc == waiting + arrives
    return count


def _step(scheduler: UnifiedScheduler, now: float) -> None:
    batch = scheduler.plan(now).batch
    scheduler.complete(batch, {item.request_id: 1 for item in batch})


def test_a_step_does_a_fixed_number_of_things_for_each_running_request() -> None:
    assert calls_of_a_step(0) < 12 * RUNNING


def test_it_costs_nothing_more_to_have_many_waiting_or_long_contexts() -> None:
    assert calls_of_a_step(0, known=1000) == calls_of_a_step(0)
    assert calls_of_a_step(1000) == calls_of_a_step(1)
    assert calls_of_a_step(1000, arrives=True) == calls_of_a_step(100, arrives=True)
