"""vLLM-Ascend's layer-wise connector: decode first; it says to a ``metaserver`` where prefill shall write.

The metaserver is this router: every attempt has an address of its own at the router's private listener, so whoever
posts there is that attempt's decode. What it posts is what prefill gets, to the byte; it names decode's blocks and the
id that both legs were given. Prefill then writes layer by layer while it computes.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from pdcore.router.api import ClientRequest
from pdcore.router.protocols.base import Attempt, LegPlan, Plan, SecondLeg
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.protocols.prefill_only import check_one_hand_off
from pdcore.router.protocols.vllm import as_transfer_params, chosen_rank, decode_post, prefill_post
from pdcore.router.upstream import Post

NAME = "ascend-layerwise"


class AscendLayerwise(Handshake):
    """Two hops, decode's the first."""

    calls_back: ClassVar[bool] = True

    def check(self, request: ClientRequest) -> None:
        """One hand-off has one prompt and one answer."""
        check_one_hand_off(request, NAME)

    def plan(self, attempt: Attempt) -> Plan:
        """Decode at once, prefill when decode has called."""
        prefill, decode = attempt.pick.prefill, attempt.pick.decode
        assert prefill is not None, "a two-hop handshake needs a pair"
        assert attempt.callback_url is not None, "decode must have whom to call"
        params = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "metaserver": attempt.callback_url,
        }
        return Plan(
            legs=(LegPlan(leg="decode", instance=decode, post=decode_post(attempt, decode, params)),),
            second=SecondLeg(
                leg="prefill", instance=prefill, after="callback", make=partial(_compute, attempt)
            ),
            room=attempt.room,
        )


def _compute(attempt: Attempt, called: bytes) -> Post:
    prefill = attempt.pick.prefill
    assert prefill is not None
    return prefill_post(attempt, prefill, as_transfer_params(called), chosen_rank(attempt, prefill))
