"""Each role's hand-offs between its scheduler and the ranks of its DP group: orders out, words in, no I/O."""

from __future__ import annotations

import msgspec
import pytest

from pdcore.engine.consensus import DecodeConsensus, PrefillConsensus
from pdcore.engine.handoffs import DecodeHandoffs, NoHandoffs, PrefillHandoffs
from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.messages import Failed, HandedOff, Start, Step
from pdcore.engine.sampled import with_logprobs
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.plan import Failure
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.unified import UnifiedScheduler
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeGroup,
    Drained,
    Expect,
    Fail,
    HandoffFailed,
    Handshaken,
    Open,
    PrefillGroup,
    Send,
    SendAhead,
    SendFailed,
    Sent,
    TokenLogprobs,
    WriteEnded,
)
from pdcore.topology.keys import RankPosition
from tests.engine.scheduler.simulation import groups, limits, start

pytestmark = pytest.mark.unit

VOCABULARY = 100
ZERO, ONE = RankPosition(0, 0, 0), RankPosition(0, 0, 1)
GROUP = DecodeGroup(instance_id="d0", incarnation="i", dp=0, cp_size=1, tp_size=2)
PREFILL = PrefillGroup(instance_id="p0", incarnation="j", dp=0, dp_size=1, cp_size=1, tp_size=2, ranks=())


class Prefill:
    """A prefill DP group of two ranks that both take part."""

    def __init__(self, *, per_chunk: bool = False) -> None:
        self.blocks = groups(16)
        self.scheduler = PrefillScheduler(limits(), self.blocks, per_chunk=per_chunk)
        self.handoffs = PrefillHandoffs(self.scheduler, PrefillConsensus(lambda decode: (ZERO, ONE)))

    def start(self, name: str = "a", room: int = 7, prompt: int = 5) -> list[object]:
        request = start(name, prompt, room=room)
        self.scheduler.add(request, 0)
        return list(self.handoffs.started(request))

    def hear(self, *words: Handshaken | WriteEnded | Sent | SendFailed) -> list[object]:
        """Both ranks say each of ``words``."""
        return [said for word in words for rank in (ZERO, ONE) for said in self.handoffs.hear(rank, word)]

    def compute(self, logprobs: TokenLogprobs | None = None) -> list[object]:
        plan = self.scheduler.plan(0)
        ordered = list(self.handoffs.send_ahead(plan.ahead))
        outcome = self.scheduler.complete(plan.batch, {item.request_id: 9 for item in plan.batch})
        if logprobs is not None:
            outcome = with_logprobs(outcome, {item.request_id: logprobs for item in plan.batch})
        return [*ordered, *self.handoffs.send(outcome.handoffs)]


def test_a_prefill_request_is_expected_computed_sent_and_handed_off() -> None:
    group = Prefill()
    assert group.start() == [Expect(room=7, expected_peer=None, prompt_len=5, remaining_ms=60_000)]
    assert group.scheduler.plan(0).batch == ()
    group.hear(Handshaken(room=7, decode=GROUP))
    (send,) = group.compute()
    assert isinstance(send, Send)
    assert (send.room, send.first_token, send.kv_len) == (7, 9, 5)
    assert group.hear(WriteEnded(room=7), Sent(room=7)) == [HandedOff(request_id="a")]
    assert group.blocks.free_blocks == group.blocks.total


def test_one_ranks_failure_fails_the_request_and_is_ordered_to_the_others() -> None:
    group = Prefill()
    group.start()
    said = group.hear(SendFailed(room=7, code="prefill_failed", message="broken"))
    assert said == [
        Failed(request_id="a", code="prefill_failed", message="broken"),
        Fail(room=7, code="prefill_failed", message="broken"),
    ]


def test_an_aborted_prefill_request_keeps_its_blocks_until_both_writes_have_ended() -> None:
    group = Prefill()
    group.start()
    group.hear(Handshaken(room=7, decode=GROUP))
    group.compute()
    (fail,) = group.handoffs.abort("a")
    assert isinstance(fail, Fail)
    assert fail.code == "cancelled"
    assert list(group.handoffs.hear(ZERO, WriteEnded(room=7))) == []
    assert group.blocks.free_blocks != group.blocks.total
    list(group.handoffs.hear(ONE, WriteEnded(room=7)))
    assert group.blocks.free_blocks == group.blocks.total


def test_a_prompt_in_chunks_is_sent_ahead_and_handed_off_once() -> None:
    group = Prefill(per_chunk=True)
    group.start(prompt=12)
    group.hear(Handshaken(room=7, decode=GROUP))
    assert group.compute() == []
    ahead, send = group.compute()
    assert isinstance(ahead, SendAhead)
    assert isinstance(send, Send)
    assert (ahead.room, ahead.kv_len, ahead.computed, ahead.first) == (7, 12, 8, True)
    assert (send.blocks, send.first) == (ahead.blocks, False)
    assert group.hear(WriteEnded(room=7), Sent(room=7)) == [HandedOff(request_id="a")]
    assert group.blocks.free_blocks == group.blocks.total


def test_a_room_that_fails_between_two_chunks_keeps_its_blocks_until_every_rank_is_done_with_them() -> None:
    group = Prefill(per_chunk=True)
    group.start(prompt=20)
    group.hear(Handshaken(room=7, decode=GROUP))
    group.compute()
    assert [type(order) for order in group.compute()] == [SendAhead]
    failed = SendFailed(room=7, code="prefill_failed", message="broken")
    assert len(list(group.handoffs.hear(ONE, failed))) == 2
    assert group.compute() == []
    list(group.handoffs.hear(ONE, WriteEnded(room=7)))
    assert group.blocks.free_blocks != group.blocks.total
    list(group.handoffs.hear(ZERO, WriteEnded(room=7)))
    assert group.blocks.free_blocks == group.blocks.total


def test_what_the_prefill_scheduler_gives_up_is_ordered_to_fail() -> None:
    group = Prefill()
    group.start()
    late = Failure(request_id="a", room=7, code="deadline_exceeded", message="late")
    assert list(group.handoffs.give_up(late)) == [Fail(room=7, code="deadline_exceeded", message="late")]


class Decode:
    """A decode DP group of two ranks."""

    def __init__(self) -> None:
        self.blocks: BlockGroups = groups(16)
        self.scheduler = DecodeScheduler(limits(), self.blocks)
        self.handoffs = DecodeHandoffs(self.scheduler, DecodeConsensus((ZERO, ONE)), VOCABULARY)

    def open(self, name: str = "a", max_tokens: int = 1, top_logprobs: int | None = None) -> Open:
        request = msgspec.structs.replace(start(name, 8, room=1, max_tokens=max_tokens), prefill=PREFILL)
        sampling = msgspec.structs.replace(request.sampling, top_logprobs=top_logprobs)
        request = msgspec.structs.replace(request, sampling=sampling)
        self.scheduler.add(request, 0)
        assert list(self.handoffs.started(request)) == []
        (order,) = self.handoffs.admit(self.scheduler.plan(0).admit, 10.0)
        assert isinstance(order, Open)
        return order

    def hear(self, *words: Arrived | HandoffFailed | Drained) -> list[object]:
        return [said for word in words for rank in (ZERO, ONE) for said in self.handoffs.hear(rank, word)]


def test_a_decode_request_asks_its_prefill_group_and_runs_once_all_ranks_have_its_kv() -> None:
    group = Decode()
    order = group.open()
    assert (order.room, order.prefill, order.prompt_len, order.remaining_ms) == (1, PREFILL, 8, 50_000)
    assert list(map(len, order.blocks)) == [2]
    (said,) = group.hear(Arrived(handoff=order.handoff, first_token=5, kv_len=8))
    assert isinstance(said, Step)
    assert said.outputs[0].token_ids == (5,)
    assert group.blocks.free_blocks == group.blocks.total


def test_first_token_logprobs_travel_with_the_hand_off_to_those_who_asked() -> None:
    said = TokenLogprobs(logprob=-0.5, top=((9, -0.5),))
    group = Prefill()
    group.start()
    group.hear(Handshaken(room=7, decode=GROUP))
    (send,) = group.compute(said)
    assert isinstance(send, Send)
    assert send.aux == said
    for asked, told in ((0, (said,)), (None, ())):
        other = Decode()
        order = other.open(top_logprobs=asked)
        (step,) = other.hear(Arrived(handoff=order.handoff, first_token=5, kv_len=8, aux=said))
        assert isinstance(step, Step)
        assert step.outputs[0].logprobs == told


@pytest.mark.parametrize(("token", "fails"), [(0, False), (99, False), (100, True), (2**32 - 1, True)])
def test_a_first_token_the_model_does_not_have_fails_its_request_alone(token: int, fails: bool) -> None:
    group = Decode()
    (said,) = group.hear(Arrived(handoff=group.open().handoff, first_token=token, kv_len=8))
    assert isinstance(said, Failed if fails else Step)
    assert group.blocks.free_blocks == group.blocks.total
    assert group.scheduler.find("a") is None


def test_a_failed_handoff_is_quarantined_until_every_rank_is_drained() -> None:
    group = Decode()
    handoff = group.open().handoff
    said = list(group.handoffs.hear(ONE, HandoffFailed(handoff=handoff, code="prefill_failed", message="x")))
    assert said == [
        Failed(request_id="a", code="prefill_failed", message="x"),
        AbortHandoff(handoff=handoff, code="prefill_failed"),
    ]
    assert list(group.handoffs.hear(ONE, Drained(handoff=handoff))) == []
    assert group.blocks.statistics().quarantined
    list(group.handoffs.hear(ZERO, Drained(handoff=handoff)))
    assert group.blocks.free_blocks == group.blocks.total


def test_an_abort_is_ordered_while_kv_is_on_its_way_and_not_afterwards() -> None:
    group = Decode()
    handoff = group.open(max_tokens=9).handoff
    assert list(group.handoffs.abort("a")) == [AbortHandoff(handoff=handoff, code="cancelled")]
    group.hear(Drained(handoff=handoff))
    other = group.open("b", max_tokens=9).handoff
    group.hear(Arrived(handoff=other, first_token=5, kv_len=8))
    assert list(group.handoffs.abort("b")) == []
    assert group.blocks.free_blocks == group.blocks.total


def test_a_late_decode_request_is_aborted_at_every_rank() -> None:
    group = Decode()
    handoff = group.open().handoff
    late = Failure(request_id="a", room=1, code="deadline_exceeded", message="late", handoff=handoff)
    assert list(group.handoffs.give_up(late)) == [AbortHandoff(handoff=handoff, code="deadline_exceeded")]


def test_a_unified_rank_orders_nothing() -> None:
    scheduler = UnifiedScheduler(limits(), groups(16))
    handoffs, request = NoHandoffs(scheduler), start("a", 5)
    scheduler.add(request, 0)
    assert list(handoffs.started(request)) == []
    assert list(handoffs.abort("a")) == []
    assert scheduler.find("a") is None
    with pytest.raises(TypeError):
        handoffs.hear(ZERO, Sent(room=1))


def test_starts_without_a_prefill_group_are_refused() -> None:
    group = Decode()
    with pytest.raises(Exception, match="without the prefill"):
        group.scheduler.add(start("a", 8, room=1), 0)
    assert isinstance(start("a", 8, room=1), Start)
