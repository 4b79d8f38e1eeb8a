"""The table of transfer states, whole."""

from __future__ import annotations

from itertools import product

import pytest

from pdcore.engine.transfer.states import (
    DEADLINES,
    TRANSITIONS,
    Deadline,
    IllegalTransition,
    TransferEvent,
    TransferState,
    advance,
    is_final,
    runs_in,
)

pytestmark = pytest.mark.unit

S, E = TransferState, TransferEvent
LEGAL = {
    (S.BOOTSTRAPPING, E.HANDSHAKEN): S.WAITING_FOR_INPUT,
    (S.BOOTSTRAPPING, E.FAILED): S.FAILED,
    (S.WAITING_FOR_INPUT, E.BEGUN_AHEAD): S.SENDING_AHEAD,
    (S.WAITING_FOR_INPUT, E.STARTED): S.TRANSFERRING,
    (S.WAITING_FOR_INPUT, E.DELIVERED): S.SUCCESS,
    (S.WAITING_FOR_INPUT, E.FAILED): S.FAILED,
    (S.SENDING_AHEAD, E.STARTED): S.TRANSFERRING,
    (S.SENDING_AHEAD, E.FAILED): S.FAILED,
    (S.TRANSFERRING, E.DELIVERED): S.SUCCESS,
    (S.TRANSFERRING, E.FAILED): S.FAILED,
}


@pytest.mark.parametrize(("state", "event"), list(product(S, E)))
def test_every_pair_of_state_and_event(state: TransferState, event: TransferEvent) -> None:
    if (state, event) in LEGAL:
        assert advance(state, event) is LEGAL[state, event]
    else:
        with pytest.raises(IllegalTransition, match=state.name):
            advance(state, event)


def test_a_smaller_number_is_further_from_done() -> None:
    assert sorted(S) == [
        S.FAILED,
        S.BOOTSTRAPPING,
        S.WAITING_FOR_INPUT,
        S.SENDING_AHEAD,
        S.TRANSFERRING,
        S.SUCCESS,
    ]


def test_only_success_and_failed_are_final_and_failing_is_possible_from_the_rest() -> None:
    assert set(TRANSITIONS) == set(S)
    assert {state for state in S if is_final(state)} == {S.SUCCESS, S.FAILED}
    assert all(E.FAILED in TRANSITIONS[state] for state in S if not is_final(state))


def test_no_step_but_failing_goes_backwards() -> None:
    assert all(after > before or event is E.FAILED for (before, event), after in LEGAL.items())


@pytest.mark.parametrize("state", S)
def test_every_state_but_success_names_a_deadline_and_no_live_one_can_outlast_its_request(
    state: TransferState,
) -> None:
    assert runs_in(state, Deadline.REQUEST) == (not is_final(state))
    assert bool(DEADLINES[state]) == (state is not S.SUCCESS)
