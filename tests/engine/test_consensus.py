"""Many ranks' words about hand-offs become one: by example, and in any order of any interleaving."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.consensus import DecodeConsensus, PrefillConsensus
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeEvent,
    DecodeGroup,
    Drained,
    Fail,
    HandoffFailed,
    Handshaken,
    PrefillEvent,
    SendFailed,
    Sent,
    TokenLogprobs,
    WriteEnded,
)
from pdcore.topology.keys import RankPosition

pytestmark = pytest.mark.unit

ZERO, ONE, TWO = (RankPosition(0, 0, tp) for tp in range(3))
GROUP = DecodeGroup(instance_id="d0", incarnation="i", dp=0, cp_size=1, tp_size=2)
SHAKEN = Handshaken(room=7, decode=GROUP)
FAILED = SendFailed(room=7, code="prefill_failed", message="broken")


def prefill(*taking_part: RankPosition) -> PrefillConsensus:
    consensus = PrefillConsensus(lambda decode: taking_part)
    consensus.expect(7)
    return consensus


def say(consensus: PrefillConsensus, *words: tuple[RankPosition, PrefillEvent]) -> list[PrefillEvent | Fail]:
    return [said for rank, event in words for said in consensus.hear(rank, event)]


def test_a_room_gets_on_when_its_last_rank_does() -> None:
    consensus = prefill(ZERO, ONE)
    assert say(consensus, (ONE, SHAKEN)) == []
    assert say(consensus, (ZERO, SHAKEN)) == [SHAKEN]
    consensus.send(7)
    ended, sent = WriteEnded(room=7), Sent(room=7)
    assert say(consensus, (ZERO, ended), (ZERO, sent), (ONE, ended)) == [ended]
    assert say(consensus, (ONE, sent)) == [sent]
    assert len(consensus) == 0


def test_ranks_that_take_no_part_are_not_waited_for() -> None:
    consensus = prefill(ONE)
    assert say(consensus, (ONE, SHAKEN)) == [SHAKEN]
    consensus.send(7)
    assert say(consensus, (ONE, WriteEnded(room=7)), (ONE, Sent(room=7))) == [
        WriteEnded(room=7),
        Sent(room=7),
    ]
    assert len(consensus) == 0


def test_the_first_failure_is_everybodys() -> None:
    consensus = prefill(ZERO, ONE)
    say(consensus, (ZERO, SHAKEN), (ONE, SHAKEN))
    consensus.send(7)
    other = SendFailed(room=7, code="cancelled", message="told to")
    order = Fail(room=7, code="prefill_failed", message="broken")
    assert say(consensus, (ONE, FAILED), (ZERO, Sent(room=7)), (ZERO, other)) == [FAILED, order]
    assert say(consensus, (ZERO, WriteEnded(room=7))) == []
    assert say(consensus, (ONE, WriteEnded(room=7))) == [WriteEnded(room=7)]
    assert len(consensus) == 0


def test_a_room_that_failed_before_it_was_sent_is_forgotten() -> None:
    consensus = prefill(ZERO, ONE)
    assert say(consensus, (ONE, FAILED), (ZERO, SHAKEN)) == [
        FAILED,
        Fail(room=7, code="prefill_failed", message="broken"),
    ]
    assert len(consensus) == 0


def test_two_decode_groups_cannot_have_the_same_room() -> None:
    consensus = prefill(ZERO, ONE)
    other = DecodeGroup(instance_id="d1", incarnation="j", dp=0, cp_size=1, tp_size=2)
    failed, order = say(consensus, (ZERO, SHAKEN), (ONE, Handshaken(room=7, decode=other)))
    assert isinstance(failed, SendFailed)
    assert isinstance(order, Fail)
    assert failed.code == order.code == "room_in_use"
    assert "d0 dp 0 (incarnation i) and d1 dp 0 (incarnation j)" in failed.message


def test_what_the_scheduler_gave_up_still_ends_its_writes() -> None:
    consensus = prefill(ZERO, ONE)
    say(consensus, (ZERO, SHAKEN), (ONE, SHAKEN))
    consensus.send(7)
    consensus.fail(7)
    assert say(consensus, (ZERO, WriteEnded(room=7)), (ONE, WriteEnded(room=7))) == [WriteEnded(room=7)]
    assert len(consensus) == 0


def arrived(token: int = 5, aux: TokenLogprobs | None = None) -> Arrived:
    return Arrived(handoff=1, first_token=token, kv_len=9, aux=aux)


def decode(*ranks: RankPosition) -> DecodeConsensus:
    consensus = DecodeConsensus(ranks)
    consensus.open(1)
    return consensus


def tell(
    consensus: DecodeConsensus, *words: tuple[RankPosition, DecodeEvent]
) -> list[DecodeEvent | AbortHandoff]:
    return [said for rank, event in words for said in consensus.hear(rank, event)]


def test_kv_has_arrived_once_it_has_everywhere() -> None:
    consensus = decode(ZERO, ONE)
    aux = TokenLogprobs(logprob=-1.0)
    assert tell(consensus, (ONE, arrived(aux=aux))) == []
    assert tell(consensus, (ZERO, arrived())) == [arrived(aux=aux)]
    assert len(consensus) == 0


def test_ranks_that_were_told_different_tokens_fail_it() -> None:
    failed, drained = tell(decode(ZERO, ONE), (ONE, arrived(5)), (ZERO, arrived(6)))
    assert isinstance(failed, HandoffFailed)
    assert "[(5, 9), (6, 9)]" in failed.message
    assert drained == Drained(handoff=1)


def test_memory_comes_back_when_every_rank_is_drained_or_has_its_kv() -> None:
    consensus = decode(ZERO, ONE, TWO)
    failure = HandoffFailed(handoff=1, code="prefill_failed", message="broken")
    assert tell(consensus, (ONE, failure), (TWO, failure)) == [
        failure,
        AbortHandoff(handoff=1, code="prefill_failed"),
    ]
    assert tell(consensus, (ONE, Drained(handoff=1)), (ZERO, arrived())) == []
    assert tell(consensus, (TWO, Drained(handoff=1))) == [Drained(handoff=1)]
    assert len(consensus) == 0


def test_an_abort_is_ordered_once_and_beats_an_arrival_that_crosses_it() -> None:
    consensus = decode(ZERO, ONE)
    tell(consensus, (ZERO, arrived()))
    assert list(consensus.abort(1, "cancelled")) == [AbortHandoff(handoff=1, code="cancelled")]
    assert list(consensus.abort(1, "cancelled")) == []
    assert tell(consensus, (ONE, arrived())) == [Drained(handoff=1)]
    assert list(consensus.abort(1, "cancelled")) == []


RANKS = (ZERO, ONE, TWO)
SUCCESS: list[DecodeEvent] = [arrived()]
FAILURE: list[DecodeEvent] = [
    HandoffFailed(handoff=1, code="prefill_failed", message="broken"),
    Drained(handoff=1),
]


@given(st.tuples(*(st.sampled_from([SUCCESS, FAILURE]) for _ in RANKS)), st.data())
def test_in_any_order_a_handoff_ends_once_and_memory_comes_back_last(
    stories: tuple[list[DecodeEvent], ...], data: st.DataObject
) -> None:
    consensus, left = decode(*RANKS), {rank: list(story) for rank, story in zip(RANKS, stories, strict=True)}
    said: list[DecodeEvent | AbortHandoff] = []
    while left:
        rank = data.draw(st.sampled_from(sorted(left)))
        said += consensus.hear(rank, left[rank].pop(0))
        left = {rank: rest for rank, rest in left.items() if rest}
    kinds = Counter(type(event) for event in said)
    if all(story is SUCCESS for story in stories):
        assert kinds == {Arrived: 1}
    else:
        assert kinds == {HandoffFailed: 1, AbortHandoff: 1, Drained: 1}
        assert isinstance(said[-1], Drained)
    assert len(consensus) == 0


@given(
    st.permutations(
        [(rank, event) for rank in (ZERO, ONE) for event in (SHAKEN, WriteEnded(room=7), Sent(room=7))]
    ),
    st.sampled_from([None, ZERO, ONE]),
)
def test_in_any_order_a_room_is_sent_or_failed_once_and_its_blocks_are_let_go_once(
    order: list[tuple[RankPosition, PrefillEvent]], fails: RankPosition | None
) -> None:
    """Each rank's own words keep their order; one rank may fail instead of having sent."""
    consensus = prefill(ZERO, ONE)
    stories: dict[RankPosition, list[PrefillEvent]] = {
        rank: [WriteEnded(room=7), FAILED if rank == fails else Sent(room=7)] for rank in (ZERO, ONE)
    }
    said = say(consensus, (ZERO, SHAKEN), (ONE, SHAKEN))
    consensus.send(7)
    for rank, _ in order:
        if stories[rank]:
            said += consensus.hear(rank, stories[rank].pop(0))
    kinds = Counter(type(event) for event in said)
    assert kinds[Handshaken] == kinds[WriteEnded] == 1
    assert (kinds[Sent], kinds[SendFailed], kinds[Fail]) == ((1, 0, 0) if fails is None else (0, 1, 1))
    assert len(consensus) == 0
