"""The live replay at a small size: its engines keep what the simulation's keep, and our own router finds as much there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from bench.affinity.chats import Chat, blocks, tokenized
from bench.affinity.clients import Clients
from bench.affinity.engines import BEGIN, COUNTS, listeners, serve
from bench.affinity.lanes import SUBJECTS, Subject, body_of
from bench.affinity.live import replay
from bench.affinity.routers import Affinity
from bench.affinity.simulation import FIXED_S, TOKENS_PER_S, simulate
from bench.affinity.verdicts import OURS
from bench.affinity.workloads import BLOCK_TOKENS, Part, Request, conversations
from bench.router.processes import fetch
from pdcore.beside import running_beside
from tests.support.eventually import eventually

SPEED = 4.0


def asked(system: int, user: int, **more: int) -> bytes:
    """A prompt of ten blocks that others share, and one and a half of its own."""
    parts = (Part("system", (system,), 640), Part("user", (system, user), 100))
    named = "".join(f', "{name}": {value}' for name, value in more.items())
    return body_of(Request(0.0, user, parts).prompt())[:-1] + named.encode() + b"}"


@pytest.mark.unit
def test_text_that_begins_alike_has_the_same_blocks_as_far_as_it_is_alike() -> None:
    one, other = (blocks(msgspec.json.decode(asked(1, user), type=Chat).messages) for user in (1, 2))
    assert len(one) == len(other) == 11
    assert one[:10] == other[:10]
    assert one[10] != other[10]


@pytest.mark.unit
def test_tokens_are_alike_as_far_as_the_text_is() -> None:
    one, other = (msgspec.json.decode(asked(1, user), type=Chat).messages for user in (1, 2))
    told = [json.loads(tokenized(messages)) for messages in (one, other)]
    assert [len(each["tokens"]) for each in told] == [each["count"] for each in told]
    assert told[0]["tokens"][:640] == told[1]["tokens"][:640]
    assert told[0]["tokens"] != told[1]["tokens"]


@pytest.mark.unit
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_router_is_told_every_prefill_and_a_place_of_its_own(subject: Subject) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    told = subject.command(7, urls, "http://127.0.0.1:9")
    assert [next(url for url in urls if url in word) for word in told if any(u in word for u in urls)] == urls
    assert told[told.index("--port") + 1] == "7"
    assert not any("{" in word for word in told)


@asynccontextmanager
async def engines() -> AsyncIterator[tuple[Clients, Clients, str]]:
    """A prefill and a decode with an empty cache, and where they are counted."""
    bound = listeners(2)
    ports = [one.getsockname()[1] for one in bound]
    place = f"http://127.0.0.1:{ports[1]}"
    async with running_beside(serve(SPEED, bound)):
        await eventually(lambda: _begin(place), 5, "the engines listen")
        prefill, decode = (Clients(port) for port in ports)
        yield prefill, decode, place
        prefill.close()
        decode.close()


async def _begin(place: str) -> bool:
    try:
        await asyncio.to_thread(fetch, place + BEGIN.decode())
    except OSError:
        return False
    return True


@pytest.mark.integration
async def test_a_prefill_takes_as_long_as_what_it_does_not_find_and_its_decode_waits_for_it() -> None:
    async with engines() as (prefill, decode, place):
        began = time.monotonic()
        await asyncio.to_thread(fetch, place + BEGIN.decode())
        both = asked(1, 1, bootstrap_room=7)
        assert set(await asyncio.gather(decode.ask(both), prefill.ask(both))) == {200}
        assert time.monotonic() - began >= (FIXED_S + 11 * BLOCK_TOKENS / TOKENS_PER_S) / SPEED - 0.002
        assert await prefill.ask(asked(1, 2, bootstrap_room=8)) == 200
        assert await decode.ask(asked(1, 2, bootstrap_room=8)) == 200
        assert await prefill.ask(asked(1, 3)) == 200
        (counts,) = await asyncio.to_thread(fetch, place + COUNTS.decode())
        assert (counts["served"], counts["found"], counts["asked"]) == (3, 20, 33)
        assert counts["took_s"][0] == pytest.approx(FIXED_S + 11 * BLOCK_TOKENS / TOKENS_PER_S)


@pytest.mark.integration
@pytest.mark.cluster
def test_routers_of_ours_find_as_much_in_real_time_as_in_the_simulation() -> None:
    (ours,) = (subject for subject in SUBJECTS if subject.name == OURS)
    requests = conversations(3, 800, systems=5)
    live = replay([ours], (1, 4), requests, 1.0)
    for (_, routers), outcome in live.items():
        assert outcome.failed == 0
        expected = simulate(requests, routers, Affinity).hit_rate
        assert outcome.hit_rate == pytest.approx(expected, abs=0.08)
