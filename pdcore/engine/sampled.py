"""What a step sampled, and how its log probabilities find their way beside the tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pdcore.engine.scheduler.plan import Outcome
from pdcore.engine.transfer.orders import TokenLogprobs

Logprobs = Mapping[str, TokenLogprobs]


class Sampled(NamedTuple):
    """By request id: the token of each item that samples, and its log probabilities where they were asked for."""

    tokens: Mapping[str, int]
    logprobs: Logprobs


def with_logprobs(outcome: Outcome, logprobs: Logprobs) -> Outcome:
    """``outcome`` with the log probabilities of its tokens; the same object when there are none."""
    if not logprobs:
        return outcome
    change = msgspec.structs.replace
    return Outcome(
        outputs=tuple(
            change(output, logprobs=(logprobs[output.request_id],))
            if output.request_id in logprobs
            else output
            for output in outcome.outputs
        ),
        handoffs=tuple(
            change(handoff, logprobs=logprobs.get(handoff.request_id)) for handoff in outcome.handoffs
        ),
    )
