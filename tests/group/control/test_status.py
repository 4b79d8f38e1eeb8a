"""What a person reads about a group: advice that can be followed, and none that contradicts what is under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdcore.group.control.generation import frozen
from pdcore.group.control.plan import Phase, Plan
from pdcore.group.control.seen import Seen
from pdcore.group.control.status import headline, status_of
from pdcore.group.spec import GroupSpec
from tests.group.control.test_state import EVERYBODY, PLAN, RESTART, topology
from tests.group.control.world import GROUP, PACKAGE, spec

pytestmark = pytest.mark.unit

ADVICE = "pdcore group restart applies it"
OLD, NEW, NEWER = (
    spec(),
    spec(backend_parameters=["--max-batch=8"]),
    spec(backend_parameters=["--max-batch=9"]),
)


def told(plan: Plan, saved: GroupSpec, *, kept: bool = False, running: bool = True) -> str:
    """The headline of a group that runs OLD, whose restart leads to NEW, and of which ``saved`` is saved."""
    seen = Seen(
        group=GROUP,
        plan=plan,
        revision=1,
        generations={1: frozen(OLD, 1, PACKAGE), 2: frozen(NEW, 2, PACKAGE)},
        slots={},
        topology=topology(*(EVERYBODY if running else ()), saved=saved),
        now=0.0,
    )
    return headline(status_of(seen, PACKAGE, {}, kept=kept))


def test_what_was_saved_and_runs_needs_no_advice() -> None:
    assert ADVICE not in told(PLAN, OLD)


def test_what_was_saved_and_does_not_run_is_applied_by_a_restart() -> None:
    assert told(PLAN, NEW).endswith(f"; the saved spec is newer than what runs: {ADVICE}")


@pytest.mark.parametrize("phase", ["stopping", "starting", "switching", "draining"])
def test_a_restart_that_is_under_way_is_not_advised(phase: Phase) -> None:
    plan = replace(PLAN, restart=replace(RESTART, phase=phase))
    assert ADVICE not in told(plan, NEW)
    assert told(plan, NEWER).endswith(f"{ADVICE} once this is over")


def test_a_restart_that_is_given_up_leaves_the_saved_spec_to_another_one() -> None:
    plan = replace(PLAN, restart=replace(RESTART, phase="rolling_back"))
    assert told(plan, NEW).endswith(f"{ADVICE} once this is over")


def test_a_group_that_is_being_deleted_is_not_to_be_restarted() -> None:
    assert ADVICE not in told(replace(PLAN, ending=True), NEW)


def test_only_who_does_not_start_members_waits_for_somebody_who_does() -> None:
    waits = "waits for somebody to start its members: pdcore up"
    assert waits in told(PLAN, OLD, running=False)
    assert "waits for prefill (0 of 2 ready)" in told(PLAN, OLD, running=False, kept=True)
    assert waits not in told(PLAN, OLD, running=False, kept=True)
