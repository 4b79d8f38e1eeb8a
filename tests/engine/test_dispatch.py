"""A leader's line to its ranks over a real socket: one reply per request, aborts that arrive, nothing left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pdcore.engine.dispatch import Dispatch, DispatchStatistics
from pdcore.engine.messages import Abort, Failed, HandedOff, Limits, Sampling, Start, Stop
from pdcore.engine.replies import Delivery
from pdcore.errors import ApiError, ConfigError
from pdcore.topology.keys import RankPosition
from tests.support.eventually import eventually
from tests.support.fake_rank import READY, FakeRank, stats, step

pytestmark = pytest.mark.integration

RANK = RankPosition(0, 0, 0)


def start(request_id: str = "a", room: int = 0) -> Start:
    return Start(
        request_id=request_id,
        room=room,
        prompt=(1, 2),
        sampling=Sampling(temperature=0, top_p=1, top_k=0, seed=1),
        limits=Limits(max_tokens=4, stop_token_ids=(), ignore_eos=False),
        remaining_ms=1000,
    )


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/d.sock"


@pytest.fixture
async def dispatch(address: str) -> AsyncIterator[Dispatch]:
    with Dispatch(address, [RANK], max_held=2) as opened:
        yield opened


@pytest.fixture
async def rank(dispatch: Dispatch, address: str) -> AsyncIterator[FakeRank]:
    async with FakeRank(address) as fake:
        await fake.say(READY)
        async with asyncio.timeout(5):
            await dispatch.wait_ready()
        yield fake


async def test_ready_is_what_the_rank_said(dispatch: Dispatch, rank: FakeRank) -> None:
    assert await dispatch.wait_ready() == {RANK: READY}


async def test_a_rank_that_refuses_to_start_is_a_configuration_error(
    dispatch: Dispatch, address: str
) -> None:
    async with FakeRank(address) as fake:
        await fake.say(Failed(request_id="", code="internal", message="no such device"))
        with pytest.raises(ConfigError, match="no such device"):
            await dispatch.wait_ready()


async def test_outputs_reach_their_request_in_order_and_merged(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a"), RANK) as a, dispatch.open(start("b"), RANK) as b:
        assert await rank.wait_for(Start, 2) == start("b")
        await rank.say(step("a", [1], None), step("a", [2, 3], None), step("b", [7], "stop"))
        assert await b.next() == Delivery(token_ids=(7,), finish_reason="stop")
        assert (await a.next()).token_ids == (1, 2, 3)
        await rank.say(step("a", [4], "length"))
        assert await a.next() == Delivery(token_ids=(4,), finish_reason="length")
    assert dispatch.statistics() == DispatchStatistics(held=0, rooms=0, unsent_aborts=0, garbled=0)
    assert not [message for message in rank.received if isinstance(message, Abort)]


async def test_leaving_early_aborts_and_later_outputs_are_nobodys(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a", room=5), RANK):
        await rank.wait_for(Start)
        assert dispatch.statistics().rooms == 1
    assert (await rank.wait_for(Abort)).request_id == "a"
    await rank.say(step("a", [1], "stop"))
    with dispatch.open(start("b", room=5), RANK) as again:
        await rank.say(step("b", [2], "stop"))
        assert (await again.next()).token_ids == (2,)


async def test_a_reader_that_has_enough_need_not_be_done_to_end_the_ranks_work(
    dispatch: Dispatch, rank: FakeRank
) -> None:
    with dispatch.open(start("a"), RANK) as reply:
        await rank.say(step("a", [1], None))
        await reply.next()
        reply.leave()
        assert (await rank.wait_for(Abort)).request_id == "a"
        reply.leave()
    with dispatch.open(start("b"), RANK) as reply:
        await rank.say(step("b", [1], "stop"))
        await reply.next()
        reply.leave()
    assert [m.request_id for m in rank.received if isinstance(m, Abort)] == ["a"]


async def test_cancelling_the_reader_aborts(dispatch: Dispatch, rank: FakeRank) -> None:
    async def read() -> None:
        with dispatch.open(start("a"), RANK) as reply:
            await reply.next()

    task = asyncio.ensure_future(read())
    await rank.wait_for(Start)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await rank.wait_for(Abort)).request_id == "a"
    assert dispatch.statistics().held == 0


async def test_a_failure_comes_after_the_tokens_before_it(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a"), RANK) as reply:
        await rank.say(step("a", [1], None), Failed(request_id="a", code="decode_failed", message="no KV"))
        assert (await reply.next()).token_ids == (1,)
        with pytest.raises(ApiError, match="no KV") as caught:
            await reply.next()
    assert caught.value.code == "decode_failed"
    assert not [message for message in rank.received if isinstance(message, Abort)]


async def test_a_hand_off_ends_a_prefill_request(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a", room=9), RANK) as reply:
        await rank.say(HandedOff(request_id="a"))
        assert (await reply.next()).handed_off
    assert reply.ended


async def test_a_room_is_open_once(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a", room=9), RANK):
        with pytest.raises(ApiError) as caught, dispatch.open(start("b", room=9), RANK):
            pytest.fail("the room was given twice")
        assert (caught.value.status, caught.value.param) == (409, "bootstrap_room")
    with dispatch.open(start("c", room=9), RANK):
        assert dispatch.statistics().held == 1


async def test_more_than_it_may_hold_is_429(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a"), RANK), dispatch.open(start("b"), RANK):
        with pytest.raises(ApiError) as caught, dispatch.open(start("c"), RANK):
            pytest.fail("one too many")
        assert caught.value.status == 429
        assert "retry-after" in caught.value.headers()


async def test_a_rank_that_is_not_there_is_503_and_holds_nothing(dispatch: Dispatch) -> None:
    with pytest.raises(ApiError) as caught, dispatch.open(start("a", room=3), RANK):
        pytest.fail("sent to nobody")
    assert caught.value.status == 503
    assert dispatch.statistics() == DispatchStatistics(held=0, rooms=0, unsent_aborts=0, garbled=0)


async def test_an_abort_that_found_no_rank_is_sent_when_it_speaks_again(
    dispatch: Dispatch, address: str
) -> None:
    with ExitStack() as request:
        async with FakeRank(address) as first:
            await first.say(READY)
            await dispatch.wait_ready()
            request.enter_context(dispatch.open(start("a"), RANK))
            await first.wait_for(Start)
        await eventually(lambda: not dispatch._send(RANK, Stop()), 5, "the rank unreachable")
    assert dispatch.statistics().unsent_aborts == 1
    async with FakeRank(address) as again:
        await again.say(stats())
        assert (await again.wait_for(Abort)).request_id == "a"
    assert dispatch.statistics().unsent_aborts == 0


async def test_when_the_rank_is_lost_every_request_fails(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a"), RANK) as a, dispatch.open(start("b"), RANK) as b:
        await rank.say(step("b", [1], "stop"))
        await b.next()
        assert dispatch.fail_all("decode_failed", "rank 0.0.0 died") == 2
        with pytest.raises(ApiError, match="died"):
            await a.next()
    assert b.ended


async def test_garbage_is_counted_and_the_line_lives(
    dispatch: Dispatch, rank: FakeRank, address: str
) -> None:
    await rank.say_raw(b"\xc1nonsense")
    await rank.say_raw(b"two", b"frames")
    async with FakeRank(address, identity=b"9.9.9") as stranger:
        await stranger.say(READY)
        await eventually(lambda: dispatch.statistics().garbled == 3, 5, "three pieces of garbage")
    await rank.say(stats(rooms=4))
    await eventually(lambda: dispatch.stats and dispatch.stats[RANK].rooms == 4, 5, "the figures")


async def test_a_burst_larger_than_one_turn_is_taken_whole(dispatch: Dispatch, rank: FakeRank) -> None:
    with dispatch.open(start("a"), RANK) as reply:
        await rank.wait_for(Start)
        await rank.say(*(step("a", [n], None) for n in range(2000)))
        got: list[int] = []
        async with asyncio.timeout(5):
            while len(got) < 2000:
                got += (await reply.next()).token_ids
    assert got == list(range(2000))


async def test_ranks_are_told_to_stop(dispatch: Dispatch, rank: FakeRank) -> None:
    dispatch.stop()
    await rank.wait_for(Stop)


async def test_the_dp_rank_that_holds_least_is_chosen(tmp_path: Path) -> None:
    ranks = [RankPosition(0, 0, 0), RankPosition(0, 0, 1), RankPosition(1, 0, 0)]
    address = f"ipc://{tmp_path}/dp.sock"
    with Dispatch(address, ranks, max_held=8) as dispatch:
        async with FakeRank(address) as first:
            await first.say(READY)
            await eventually(lambda: bool(dispatch._ready), 5, "rank 0.0.0")
            assert dispatch.least_held_rank() == RankPosition(0, 0, 0)
            with dispatch.open(start("a"), RankPosition(0, 0, 0)):
                assert dispatch.least_held_rank() == RankPosition(1, 0, 0)
