"""Many streams at once through one pair: each one right, and nothing held afterwards."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import httpx
import pytest

from tests.cluster.conftest import Fleet
from tests.support.eventually import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAMS = 64


def body(number: int, *, stream: bool) -> dict[str, object]:
    return {
        "model": "tiny",
        "prompt": f"stream number {number} " * (1 + number % 5),
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }


async def streamed(client: httpx.AsyncClient, url: str, number: int) -> str:
    text: list[str] = []
    done = 0
    async with client.stream("POST", f"{url}/v1/completions", json=body(number, stream=True)) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done += 1
                continue
            text += [choice["text"] for choice in json.loads(line[6:])["choices"]]
    assert done == 1
    return "".join(text)


async def test_sixty_four_streams_are_all_right_and_leave_nothing(fleet: Fleet) -> None:
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:
        texts = await asyncio.gather(*(streamed(client, fleet.router.url, n) for n in range(STREAMS)))
        for number in range(0, STREAMS, 4):
            alone = await client.post(f"{fleet.router.url}/v1/completions", json=body(number, stream=False))
            assert alone.json()["choices"][0]["text"] == texts[number]
    await eventually(lambda: not fleet.leftovers(), 2, "blocks, slots, rooms and in-flight all zero")


async def test_clients_that_leave_at_any_moment_leave_nothing(fleet: Fleet) -> None:
    async def leave(client: httpx.AsyncClient, number: int) -> None:
        try:
            async with asyncio.timeout(0.01 * number):
                await streamed(client, fleet.router.url, number)
        except TimeoutError:
            pass

    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(leave(client, n) for n in range(STREAMS)))
    await eventually(lambda: not fleet.leftovers(), 5, "blocks, slots, rooms and in-flight all zero")
    assert fleet.router.post("/v1/completions", body(1, stream=False)).status_code == 200


def test_what_carries_a_ranks_messages_takes_no_cpu_from_its_loop(fleet: Fleet) -> None:
    for rank in (*fleet.prefill.ranks(), *fleet.decode.ranks()):
        policies: dict[str, set[int]] = {}
        for thread in rank.threads():
            name = Path(f"/proc/{rank.pid}/task/{thread.id}/comm").read_text()
            kind = "messages" if name.startswith("ZMQ") else "others"
            policies.setdefault(kind, set()).add(os.sched_getscheduler(thread.id))
        assert policies == {"messages": {os.SCHED_BATCH}, "others": {os.SCHED_OTHER}}
