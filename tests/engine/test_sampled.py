"""Log probabilities reach the outputs and hand-offs of their own requests, and nobody else's."""

from __future__ import annotations

import pytest

from pdcore.engine.messages import Output
from pdcore.engine.sampled import with_logprobs
from pdcore.engine.scheduler.plan import Handoff, Outcome
from pdcore.engine.transfer.orders import TokenLogprobs

pytestmark = pytest.mark.unit

ONE, TWO = TokenLogprobs(logprob=-1.0), TokenLogprobs(logprob=-2.0, top=((4, -0.5),))


def output(request_id: str) -> Output:
    return Output(request_id=request_id, token_ids=(1,), finish_reason=None)


def handoff(request_id: str) -> Handoff:
    return Handoff(request_id=request_id, room=1, blocks=((1,),), first_token=1, kv_len=4)


def test_each_finds_its_own() -> None:
    outcome = Outcome(outputs=(output("a"), output("b")), handoffs=(handoff("c"), handoff("d")))
    told = with_logprobs(outcome, {"b": ONE, "c": TWO})
    assert [one.logprobs for one in told.outputs] == [(), (ONE,)]
    assert [one.logprobs for one in told.handoffs] == [TWO, None]


def test_where_nobody_asked_nothing_is_copied() -> None:
    outcome = Outcome(outputs=(output("a"),))
    assert with_logprobs(outcome, {}) is outcome
