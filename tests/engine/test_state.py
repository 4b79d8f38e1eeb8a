"""Where a leader stands: phases go one way, health and readiness follow from them."""

from __future__ import annotations

import asyncio

import pytest

from pdcore.engine.legs import Phase
from pdcore.engine.state import LeaderState

pytestmark = pytest.mark.unit


def leader(*phases: Phase, announced: bool = False) -> LeaderState:
    state = LeaderState(role="unified", instance_id="u", incarnation="i", models=("m",))
    for phase in phases:
        state.enter(phase, f"because of {phase}")
    state.announced = announced
    return state


@pytest.mark.parametrize(
    ("phases", "health", "status"),
    [
        ((), "starting", 200),
        (("serving",), "ok", 200),
        (("serving", "draining"), "draining", 200),
        (("serving", "draining", "serving"), "draining", 200),
        (("draining",), "draining", 200),
        (("serving", "failed"), "failed", 503),
        (("draining", "failed"), "failed", 503),
        (("failed", "serving", "draining"), "failed", 503),
    ],
)
def test_health_follows_the_phase_and_phases_go_one_way(
    phases: tuple[Phase, ...], health: str, status: int
) -> None:
    assert leader(*phases).health() == (status, {"status": health, "instance_id": "u", "incarnation": "i"})


def test_who_was_called_off_can_be_called_back_and_who_ends_cannot() -> None:
    state = leader("serving", announced=True)
    assert not state.call_back()
    assert state.call_off("ordered")
    assert (state.phase, state.why, state.announced, state.ending) == ("draining", "ordered", False, False)
    assert not state.call_off("again")
    assert state.call_back()
    assert (state.phase, state.announced) == ("serving", False)
    for phase in ("draining", "failed"):
        ending = leader("serving")
        ending.call_off("ordered")
        ending.enter(phase, "it ends")
        assert (ending.call_back(), ending.phase, ending.why) == (False, phase, "it ends")
    assert not leader().call_off("not even serving")


def test_it_is_ready_once_it_serves_and_everybody_can_know_it() -> None:
    assert leader("serving", announced=True).readiness() == (200, {"ready": True})
    for state in (leader(), leader("serving"), leader("serving", "draining", announced=True)):
        status, body = state.readiness()
        assert (status, body["ready"]) == (503, False)
        assert str(body["reason"]).startswith(state.phase)


async def test_idle_is_when_the_last_answer_ends() -> None:
    state = leader("serving")
    async with asyncio.timeout(1):
        await state.wait_idle()
        with state.answering():
            with state.answering():
                waiting = asyncio.ensure_future(state.wait_idle())
            await asyncio.sleep(0)
            assert (state.in_flight, waiting.done()) == (1, False)
        await waiting
    assert state.in_flight == 0
