"""vLLM's NIXL connector, and the Mooncake connectors of vLLM-Ascend that speak the same: prefill first, then decode.

Prefill answers with ``kv_transfer_params``, which decode gets as they are: they say where the KV waits. The router
reads only that they are there. Without them decode would compute the prompt again and nobody would notice, so their
absence is a failure of prefill. They stay good until prefill's own lease on the KV ends, so a decode that did not take
them leaves them for another one.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pdcore.router.api import ClientRequest
from pdcore.router.protocols.base import Attempt, LegPlan, Plan, SecondLeg
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.protocols.prefill_only import check_one_hand_off
from pdcore.router.protocols.vllm import chosen_rank, decode_post, prefill_post, transfer_params
from pdcore.router.upstream import Post

ASK: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What prefill is asked for; in its answer the engine has filled in the rest."""


class Nixl(Handshake):
    """Two hops, one after the other."""

    def check(self, request: ClientRequest) -> None:
        """One hand-off has one prompt and one answer."""
        check_one_hand_off(request, "nixl")

    def plan(self, attempt: Attempt) -> Plan:
        """Prefill at once and decode by its answer, or decode alone with what an earlier attempt has left."""
        prefill, decode = attempt.pick.prefill, attempt.pick.decode
        assert prefill is not None, "a two-hop handshake needs a pair"
        if attempt.carried is not None:
            alone = LegPlan(leg="decode", instance=decode, post=_fetch(attempt, attempt.carried.words))
            return Plan(legs=(alone,), room=attempt.room)
        asked = prefill_post(attempt, prefill, ASK, chosen_rank(attempt, prefill))
        return Plan(
            legs=(LegPlan(leg="prefill", instance=prefill, post=asked),),
            second=SecondLeg(leg="decode", instance=decode, after="answer", make=partial(_fetch, attempt)),
            room=attempt.room,
        )


def _fetch(attempt: Attempt, answer: bytes) -> Post:
    return decode_post(attempt, attempt.pick.decode, transfer_params(answer))
