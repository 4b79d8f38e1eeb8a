"""vLLM's MooncakeConnector: both legs at once, joined by a transfer id of ours.

Decode must be told prefill's bootstrap server and the engine id of the data parallel rank that computes. That id is
new with every start of the engine and stands nowhere but at that server, so it is asked for once per incarnation.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import msgspec

from pdcore.router.api import ClientRequest
from pdcore.router.pick import Pick
from pdcore.router.protocols.base import Attempt, LegPlan, Plan, Question
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.protocols.prefill_only import check_one_hand_off
from pdcore.router.protocols.unreadable import Unreadable
from pdcore.router.protocols.vllm import chosen_rank, decode_post, prefill_post
from pdcore.router.want import key_of
from pdcore.topology.instance import Instance

DEFAULT_PORT: Final = 8998


class _Engine(msgspec.Struct):
    engine_id: str


_ENGINES: Final = msgspec.json.Decoder(dict[int, _Engine])


class EngineIds(msgspec.Struct, frozen=True):
    """What one prefill's bootstrap server said: an engine id per data parallel rank."""

    by_rank: dict[int, str]

    def choose(self, wanted: int | None, room: int) -> int:
        """The rank that computes: the wanted one, else one that the room chooses. Raises :class:`Unreadable`."""
        ranks = sorted(self.by_rank)
        rank = ranks[room % len(ranks)] if wanted is None else wanted
        if rank not in self.by_rank:
            raise Unreadable(f"the bootstrap server knows the ranks {ranks}, not {rank}")
        return rank


class Mooncake(Handshake):
    """One dispatch, as with a bootstrap room."""

    def check(self, request: ClientRequest) -> None:
        """One hand-off has one prompt and one answer."""
        check_one_hand_off(request, "mooncake")

    def question(self, pick: Pick) -> Question:
        """Which engine ids prefill has."""
        assert pick.prefill is not None, "a mooncake handshake needs a pair"
        return Question(key=key_of(pick.prefill), url=_address(pick.prefill) + "/query", read=_engine_ids)

    def plan(self, attempt: Attempt) -> Plan:
        """One leg for prefill, one for decode."""
        prefill, decode, known = attempt.pick.prefill, attempt.pick.decode, attempt.learned
        assert prefill is not None, "a mooncake handshake needs a pair"
        assert isinstance(known, EngineIds), "a mooncake handshake needs its answer"
        rank = known.choose(chosen_rank(attempt, prefill), attempt.room)
        among_several = rank if len(known.by_rank) > 1 else None
        transfer = {"transfer_id": f"xfer-{attempt.room:016x}"}
        give = {"do_remote_decode": True, "do_remote_prefill": False, **transfer}
        take = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": _address(prefill),
            "remote_engine_id": known.by_rank[rank],
            **transfer,
        }
        return Plan(
            legs=(
                LegPlan(
                    leg="prefill", instance=prefill, post=prefill_post(attempt, prefill, give, among_several)
                ),
                LegPlan(leg="decode", instance=decode, post=decode_post(attempt, decode, take)),
            ),
            room=attempt.room,
        )


def _address(prefill: Instance) -> str:
    """Where the instance's bootstrap server answers; beside its leader unless the record says otherwise."""
    host = prefill.record.bootstrap_host or urlsplit(prefill.record.url).hostname or ""
    port = prefill.record.bootstrap_port or DEFAULT_PORT
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _engine_ids(document: bytes) -> EngineIds:
    try:
        engines = _ENGINES.decode(document)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise Unreadable("the bootstrap server did not say which engine is at which rank") from wrong
    if not engines:
        raise Unreadable("no rank is registered at the bootstrap server")
    return EngineIds({rank: engine.engine_id for rank, engine in engines.items()})
