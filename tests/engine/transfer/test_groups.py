"""Sessions of many ranks in one process: every decode rank gets its heads from every rank that has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdcore.engine.transfer.mapping import GroupRank, GroupSizes
from pdcore.engine.transfer.orders import (
    Arrived,
    Drained,
    HandoffFailed,
    Handshaken,
    Send,
    SendFailed,
    Sent,
    TokenLogprobs,
    WriteEnded,
)
from pdcore.engine.transfer.sending import Endpoint
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import CANARY, DECODE_BLOCKS, Context, Decode, Prefill, got, has, run

pytestmark = pytest.mark.integration

LOGPROBS = TokenLogprobs(logprob=-0.25, top=((3, -0.25), (9, -2.5)))


class Fleet:
    """One prefill group and one decode group, open."""

    def __init__(
        self, stack: ExitStack, context: Context, runtime_dir: Path, prefill: GroupSizes, decode: GroupSizes
    ) -> None:
        self.sizes = prefill
        self.prefills: list[Prefill] = []
        peers = []
        for rank in _ranks(prefill):
            own = runtime_dir / str(rank)
            own.mkdir(mode=0o700)
            session = stack.enter_context(ranks.sending(context, own, sizes=prefill, rank=rank))
            self.prefills.append(Prefill(session))
            peers.append(ranks.peer_at(session.endpoint, rank=rank))
        self.group = ranks.group_of(*peers, sizes=prefill)
        self.decodes = [
            Decode(stack.enter_context(ranks.receiving(context, sizes=decode, rank=rank)))
            for rank in _ranks(decode)
        ]

    def hand_off(self, room: int, blocks: tuple[int, ...], within_s: float = 20.0) -> int:
        for prefill in self.prefills:
            prefill.expect(room, ranks.tokens_of(room))
        [handoff] = {decode.open(room, self.group, blocks, within_s) for decode in self.decodes}
        return handoff

    def until(self, check: Callable[[], object]) -> None:
        run(check, *self.prefills, *self.decodes)

    def until_every_decode_has(self, kind: type[object]) -> None:
        self.until(lambda: all(has(decode, kind) for decode in self.decodes))

    def assert_idle(self) -> None:
        """Nothing is held anywhere."""
        for prefill in self.prefills:
            p = prefill.session.statistics()
            assert (p.stashed, p.writing, p.pinned) == (0, 0, 0)
        for decode in self.decodes:
            d = decode.session.statistics()
            assert (d.slots_used, d.handoffs, d.rooms, d.quarantined, d.in_doubt) == (0, 0, 0, 0, 0)


def _ranks(sizes: GroupSizes) -> list[GroupRank]:
    return [GroupRank(cp, tp) for cp in range(sizes.cp) for tp in range(sizes.tp)]


Make = Callable[[tuple[int, int], tuple[int, int]], Fleet]


@pytest.fixture
def fleet_of(context: Context, runtime_dir: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda prefill, decode: Fleet(
            stack, context, runtime_dir, GroupSizes(*prefill), GroupSizes(*decode)
        )


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [((1, 2), (1, 1)), ((1, 1), (1, 2)), ((1, 2), (1, 2)), ((2, 1), (1, 1)), ((1, 4), (1, 2))],
    ids=["2x1", "1x2", "2x2", "cp2x1", "4x2"],
)
def test_every_decode_rank_gets_whole_blocks(
    fleet_of: Make, prefill: tuple[int, int], decode: tuple[int, int]
) -> None:
    fleet = fleet_of(prefill, decode)
    handoff = fleet.hand_off(3, (9, 4, 20))
    fleet.until_every_decode_has(Arrived)
    for rank in fleet.decodes:
        assert rank.events == [Arrived(handoff=handoff, first_token=3, kv_len=8)]
        assert (rank.block(9), rank.block(4)) == ({4}, {5})
        assert all(rank.block(b) == {CANARY} for b in range(DECODE_BLOCKS) if b not in (9, 4))
    taking_part = [p for p in fleet.prefills if has(p, Handshaken)]
    fleet.until(lambda: all(has(p, Sent) for p in taking_part))
    for part in taking_part:
        assert [type(event) for event in part.events] == [Handshaken, WriteEnded, Sent]
        [handshaken] = got(part, Handshaken)
        assert (handshaken.decode.incarnation, handshaken.decode.tp_size) == ("d1", decode[1])
    fleet.assert_idle()


def test_a_rank_whose_kv_nobody_needs_takes_send_as_the_end_of_its_room(fleet_of: Make) -> None:
    """Two heads on four ranks: two of them hold copies that are not asked for."""
    fleet = fleet_of((1, 4), (1, 2))
    fleet.hand_off(3, (9, 4))
    fleet.until_every_decode_has(Arrived)
    idle = [prefill for prefill in fleet.prefills if not prefill.events]
    assert len(idle) == 2
    for prefill in idle:
        prefill.send(3, ranks.tokens_of(3))
        prefill.turn()
        assert prefill.events == [WriteEnded(room=3)]
        assert prefill.session.statistics().rooms == 0


@pytest.mark.parametrize("tp", [1, 2])
def test_logprobs_of_the_first_token_arrive_with_it(fleet_of: Make, tp: int) -> None:
    fleet = fleet_of((1, tp), (1, 1))
    for prefill in fleet.prefills:
        prefill.sends = False
    handoff = fleet.hand_off(3, (9, 4))
    fleet.until(lambda: all(has(prefill, Handshaken) for prefill in fleet.prefills))
    for prefill in fleet.prefills:
        prefill.send(3, ranks.tokens_of(3), LOGPROBS)
    fleet.until_every_decode_has(Arrived)
    assert fleet.decodes[0].events == [Arrived(handoff=handoff, first_token=3, kv_len=8, aux=LOGPROBS)]


def test_ranks_that_sent_different_tokens_fail_the_hand_off(fleet_of: Make) -> None:
    fleet = fleet_of((1, 2), (1, 1))
    for prefill in fleet.prefills:
        prefill.sends = False
    fleet.hand_off(3, (9, 4))
    fleet.until(lambda: all(has(prefill, Handshaken) for prefill in fleet.prefills))
    fleet.prefills[0].send(3, 8)
    fleet.prefills[1].session.obey(
        Send(room=3, blocks=((3, 4),), first_token=77, kv_len=8), fleet.prefills[1].clock.now()
    )
    fleet.until_every_decode_has(Drained)
    [failed] = got(fleet.decodes[0], HandoffFailed)
    assert "[(3, 8), (77, 8)]" in failed.message
    transfer = fleet.decodes[0].session.statistics().failures.transfer
    assert [(path.engine, path.reason) for path in transfer] == [("shm", "disagreed")]
    fleet.assert_idle()


def test_one_source_that_fails_ends_the_others_and_all_memory_comes_back(fleet_of: Make) -> None:
    fleet = fleet_of((1, 2), (1, 1))
    for prefill in fleet.prefills:
        prefill.sends = False
    fleet.hand_off(3, (9, 4))
    fleet.until(lambda: all(has(prefill, Handshaken) for prefill in fleet.prefills))
    fleet.prefills[1].fail(3)
    fleet.until_every_decode_has(Drained)
    assert [failed.code for failed in got(fleet.decodes[0], HandoffFailed)] == ["cancelled"]
    fleet.until(lambda: has(fleet.prefills[0], SendFailed))
    assert fleet.decodes[0].session.statistics().failures.request == {"abort": 1}
    fleet.assert_idle()


def test_a_destination_that_does_not_come_fails_the_room_at_its_deadline(fleet_of: Make) -> None:
    fleet = fleet_of((1, 1), (1, 2))
    fleet.prefills[0].expect(3, ranks.tokens_of(3))
    fleet.decodes[0].open(3, fleet.group, (9, 4), within_s=0.3)
    fleet.until(lambda: has(fleet.prefills[0], SendFailed) and has(fleet.decodes[0], Drained))
    assert not has(fleet.prefills[0], Handshaken)
    assert got(fleet.decodes[0], HandoffFailed)[0].code == "deadline_exceeded"
    fleet.assert_idle()


def test_an_abort_reaches_every_source(fleet_of: Make) -> None:
    fleet = fleet_of((2, 2), (1, 1))
    for prefill in fleet.prefills:
        prefill.sends = False
    handoff = fleet.hand_off(3, (9, 4))
    fleet.until(lambda: all(has(prefill, Handshaken) for prefill in fleet.prefills))
    fleet.decodes[0].abort(handoff)
    fleet.until_every_decode_has(Drained)
    fleet.until(lambda: all(has(prefill, SendFailed) for prefill in fleet.prefills))
    assert fleet.decodes[0].events == [Drained(handoff=handoff)]
    fleet.assert_idle()


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [((1, 3), (1, 2), "tp_size: prefill has 3, decode 2"), ((1, 1), (2, 1), "cp_size: decode has 2")],
)
def test_groups_that_cannot_be_paired_fail_with_the_reason(
    context: Context, prefill: tuple[int, int], decode: tuple[int, int], why: str
) -> None:
    peers = [ranks.peer_at(Endpoint("127.0.0.1", 1, {}), rank=rank) for rank in _ranks(GroupSizes(*prefill))]
    group = ranks.group_of(*peers, sizes=GroupSizes(*prefill))
    with ranks.receiving(context, sizes=GroupSizes(*decode)) as session:
        rank = Decode(session)
        handoff = rank.open(3, group, (9, 4))
        rank.turn()
        failed, drained = rank.events
        assert isinstance(failed, HandoffFailed)
        assert why in failed.message
        assert drained == Drained(handoff=handoff)
        assert session.statistics().failures.request == {"handshake": 1}


def test_a_group_whose_record_lacks_a_rank_is_refused(context: Context) -> None:
    lonely = ranks.peer_at(Endpoint("127.0.0.1", 1, {}))
    with ranks.receiving(context) as session:
        rank = Decode(session)
        rank.open(3, ranks.group_of(lonely, sizes=GroupSizes(1, 2)), (9, 4))
        rank.turn()
        assert "has no rank 0.1" in got(rank, HandoffFailed)[0].message
