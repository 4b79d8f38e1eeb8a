"""Decode dies at every byte of an event: what comes before is read by the openai SDK, and the end is an error.

The short run tries each eleventh byte, and those around the end of an event, with each protocol at some of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from openai import APIError, AsyncOpenAI

from tests.router.conformance.engines import Fault
from tests.router.conformance.faults import after_the_head, instead
from tests.router.conformance.rig import PROTOCOLS, rig
from tests.router.fleet import MODEL
from tests.support import fake_engines as fake
from tests.support.fake_engines import DONE, Reset, event

pytestmark = pytest.mark.integration

FIRST, SECOND = event("a"), event("b", "stop")
WHOLE = FIRST + SECOND + DONE
SOME = sorted({*range(0, len(SECOND), 11), len(SECOND) - 1, len(SECOND)})
"""Bytes of the second event that come before the end."""


def dying_at(offset: int) -> Fault:
    """The first event whole, ``offset`` bytes of the second, the end of the connection."""
    tail = (fake.chunk(SECOND[:offset]),) if offset else ()
    return after_the_head(fake.chunk(FIRST), *tail, Reset())


async def read(sdk: AsyncOpenAI, texts: list[str | None]) -> None:
    """Collect what the SDK makes of one stream, until it ends or raises."""
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
    )
    async for part in stream:
        texts += [choice.delta.content for choice in part.choices]


async def the_sdk_reads(protocol: str, offsets: Sequence[int]) -> None:
    async with (
        rig(protocol) as one,
        AsyncOpenAI(base_url=one.fleet.url + "/v1", api_key="k", max_retries=0) as sdk,
    ):
        decode = one["u0" if protocol == "unified" else "d0"]
        for offset in offsets:
            decode.faults = [dying_at(offset)]
            texts: list[str | None] = []
            with pytest.raises(APIError) as ended:
                await read(sdk, texts)
            assert texts == (["a", "b"] if offset == len(SECOND) else ["a"]), offset
            assert ended.value.code == "decode_failed", offset
            await one.invariants()
        await one.is_served(stream=True)
        broken = await one.fleet.metric("pdcore_router_broken_streams_total")
        assert broken == len(offsets)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_sdk_reads_all_that_came_whole_and_then_an_error(protocol: str) -> None:
    await the_sdk_reads(protocol, SOME[PROTOCOLS.index(protocol) :: len(PROTOCOLS)])


@pytest.mark.cluster
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_sdk_reads_all_that_came_whole_at_every_byte(protocol: str) -> None:
    await the_sdk_reads(protocol, range(len(SECOND) + 1))


async def a_raw_reader_reads(offsets: Sequence[int]) -> None:
    """At no byte half an event, or an end."""
    async with rig("unified") as one:
        for offset in offsets:
            cut = WHOLE[:offset]
            one["u0"].faults = [instead(fake.stream_head(mark=False), fake.chunk(cut), Reset())]
            answer = await one.ask(stream=True)
            assert all(part.startswith(b"data: ") for part in answer.content.split(b"\n\n")[:-1]), offset
            assert answer.content.endswith(b"\n\n")
            assert b"[DONE]" not in answer.content, offset
            assert answer.content.count(b'"error"') == 1, offset
        await one.invariants()
        await one.is_served(stream=True)


async def test_a_raw_reader_sees_no_half_event_and_no_end() -> None:
    await a_raw_reader_reads([*(len(FIRST) + offset for offset in SOME), len(WHOLE) - 1])


@pytest.mark.cluster
async def test_a_raw_reader_sees_no_half_event_and_no_end_at_any_byte() -> None:
    await a_raw_reader_reads(range(len(FIRST), len(WHOLE)))
