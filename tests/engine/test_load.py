"""Load samples: how fast tokens come, in a header of every answer, and to whoever listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pdcore.engine.load import MOST_PEERS, Load, load_header
from pdcore.engine.messages import PeerDown
from pdcore.engine.state import LeaderState
from pdcore.topology.keys import RankPosition
from tests.support.eventually import eventually
from tests.support.fake_rank import echo, stats
from tests.support.leader_app import LEG, LeaderApp, leader_app

ONE, TWO = RankPosition(0, 0, 0), RankPosition(1, 0, 0)


@pytest.mark.unit
def test_rates_are_those_of_the_last_seconds_over_all_ranks() -> None:
    load = Load()
    assert load.tokens_s(0) == (0, 0)
    load.heard(ONE, stats(output_tokens=0), 0)
    for second in range(1, 11):
        load.heard(ONE, stats(output_tokens=100 * second, prefill_tokens=10 * second), second)
        load.heard(TWO, stats(output_tokens=100 * second), second)
    assert load.tokens_s(10) == pytest.approx((10, 200), rel=0.25)
    assert load.tokens_s(60) == (0, 0), "nobody has said anything for long"


@pytest.mark.unit
def test_a_rank_that_starts_anew_is_no_negative_rate() -> None:
    load = Load()
    load.heard(ONE, stats(output_tokens=1000), 0)
    load.heard(ONE, stats(output_tokens=3), 1)
    assert load.tokens_s(1) == (0, 0)


@pytest.mark.unit
def test_the_header_is_one_short_line_whatever_is_down() -> None:
    down = tuple(
        PeerDown(instance_id=f"p{n}", incarnation="é", rank="0.0.0", why="x" * 500) for n in range(100)
    )
    state = LeaderState(role="decode", instance_id="d", incarnation="i", models=())
    header = load_header(state, {ONE: stats(peers_down=down, kv_blocks_total=9, kv_blocks_used=2)}, (1.26, 3))
    assert header.isascii()
    assert "\n" not in header
    assert len(header) < 1024
    told = json.loads(header)
    assert len(told["peers_down"]) == MOST_PEERS
    assert (told["kv_free"], told["kv_total"], told["prefill_tokens_s"]) == (7, 9, 1.3)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[LeaderApp]:
    async with leader_app(tmp_path, "prefill", echo) as opened:
        await opened.rank.say(stats(kv_blocks_total=9, kv_blocks_used=3, kv_blocks_quarantined=1, prealloc=2))
        await eventually(lambda: opened.dispatch.stats, 5, "figures")
        yield opened


@pytest.mark.integration
async def test_answers_say_how_busy_their_engine_is(app: LeaderApp) -> None:
    answer = await app.client.post("/v1/completions", json={"prompt": "ab"} | LEG)
    told = json.loads(answer.headers["x-pdcore-load"])
    assert (told["waiting"], told["kv_free"], told["kv_total"], told["in_flight"]) == (2, 5, 9, 1)
    assert told["peers_down"] == []
    refused = await app.client.post("/v1/completions", json={"prompt": ""} | LEG)
    assert refused.status_code == 400


@pytest.mark.integration
async def test_a_listener_is_told_again_and_again_until_the_instance_ends(app: LeaderApp) -> None:
    told: list[Any] = []

    async def listen() -> None:
        async with app.client.stream("GET", "/load/stream?every_ms=100") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                told.extend(json.loads(line[6:]) for _ in line[:1])

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())
        await eventually(lambda: told, 5, "a first sample")
        await app.rank.say(stats(running=2))
        await eventually(lambda: told[-1]["dp"]["0"]["running"] == 2, 5, "newer figures")
        app.state.enter("draining", "told to end")
    assert told[-1]["dp"]["0"]["running"] == 2
    assert told[-1]["dp"]["0"]["kv_blocks_free"] == 0
    assert all(sample["instance_id"] == "prefill-0" for sample in told)


@pytest.mark.integration
async def test_how_often_is_bounded(app: LeaderApp) -> None:
    for given in ("99", "10001", "x", "-1", "1e3", "9" * 30):
        answer = await app.client.get("/load/stream", params={"every_ms": given})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "every_ms"), given
