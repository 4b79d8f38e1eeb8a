"""The contract table over real sockets: what each broken leg means for the client, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.router.fleet import Fleet, running_fleet
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import (
    COMPLETION,
    DONE,
    MARK,
    FakeEngine,
    Fin,
    Hang,
    Reset,
    Script,
    Send,
    event,
)

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION, MARK)
GOOD_STREAM: Script = fake.stream(event("a", "stop"), DONE)
HANG: Script = (Hang(),)
SOON_S = 3.0  # far below every budget, far above what a busy machine needs


def said(status: int, message: str = "too long") -> Script:
    return fake.answer(status, {"error": {"message": message, "type": "t", "code": "x", "param": "prompt"}})


class Pair:
    """One prefill, one decode, a router in front."""

    def __init__(self, fleet: Fleet, prefill: FakeEngine, decode: FakeEngine) -> None:
        self.fleet, self.prefill, self.decode = fleet, prefill, decode

    def plays(self, prefill: Script, decode: Script) -> None:
        self.prefill.scripts, self.decode.scripts = [prefill], [decode]
        self.prefill.seen.clear()
        self.decode.seen.clear()

    async def nothing_is_left(self) -> None:
        """Both engines saw the end of their legs, every gauge is 0, and the next request is served."""
        await eventually(
            lambda: self.prefill.open_now == self.decode.open_now == 0, SOON_S, "both legs ended"
        )
        await self.fleet.settled()
        self.plays(fake.accepted(), GOOD)
        assert (await self.fleet.post({"prompt": "hi"})).status_code == 200
        await self.fleet.settled()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with (
        running_fleet() as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([GOOD]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        yield Pair(fleet, prefill, decode)


PASSED_ON = (400, 401, 404, 408, 413, 422)
MAPPED = ((500, 502), (502, 502), (307, 502), (504, 504), (503, 503), (429, 429))


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_bad_status_decides_and_cancels_the_other_leg(
    pair: Pair, leg: str, stream: bool
) -> None:
    cases = [*((status, status) for status in PASSED_ON), *MAPPED]
    for status, expected in cases:
        bad = (
            said(status)
            if status != 307
            else (fake.head(307, {"location": "http://127.0.0.1:9/", "content-length": "0"}),)
        )
        pair.plays(*((bad, HANG) if leg == "prefill" else (HANG, bad)))
        began = time.monotonic()
        answer = await pair.fleet.post({"prompt": "hi", "stream": stream})
        assert answer.status_code == expected, (status, answer.text)
        assert time.monotonic() - began < SOON_S
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.content) == int(answer.headers["content-length"])
        error = answer.json()["error"]
        assert "too long" in error["message"] or status == 307
        if status not in PASSED_ON:
            assert error["request_id"] == answer.headers["x-request-id"]
            assert error["detail"]["leg"] == leg
        await eventually(
            lambda: pair.prefill.open_now == pair.decode.open_now == 0, SOON_S, "both legs ended"
        )
        bad_leg, other_leg = (pair.prefill, pair.decode) if leg == "prefill" else (pair.decode, pair.prefill)
        assert len(bad_leg.seen) == 1
        assert len(other_leg.seen) <= 1
    await pair.nothing_is_left()


async def test_a_leg_that_breaks_before_our_first_byte_is_502_of_that_leg(pair: Pair) -> None:
    head = fake.head(200, {"content-type": "application/json", "content-length": "100"})
    unfinished: Sequence[tuple[str, Script]] = [
        ("reset at once", (Reset(),)),
        ("fin at once", (Fin(),)),
        ("garbage", (Send(b"\x00\x01\r\n\r\n"), Fin())),
        ("not http", (Send(b"SSH-2.0-x\r\n"), Fin())),
        ("fin after the head", (head, Fin())),
        ("40 of 100 bytes", (head, Send(b"x" * 40), Fin())),
        ("reset within the body", (head, Send(b"x" * 40), Reset())),
        ("an empty body", fake.answer(200, b"")),
        ("not json", fake.answer(200, b"{bad json")),
        ("a list", fake.answer(200, b"[]")),
    ]
    for name, script in unfinished:
        for leg, plays in (("prefill", (script, HANG)), ("decode", (HANG, script))):
            pair.plays(*plays)
            answer = await pair.fleet.post({"prompt": "hi"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, f"{leg}_failed"), (name, leg)
    await pair.nothing_is_left()


async def test_a_stream_that_breaks_before_its_first_event_is_a_status(pair: Pair) -> None:
    start = fake.stream_head()
    for name, script in (
        ("fin after the head", (start, Fin())),
        ("half an event", (start, fake.chunk(b'data: {"x"'), Fin())),
        ("ended without anything", (start, fake.END)),
        ("garbage", (start, fake.chunk(b"data: {bad json\n\n"), Hang())),
        ("no stream at all", GOOD),
    ):
        pair.plays(fake.accepted(), script)
        answer = await pair.fleet.post({"prompt": "hi", "stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "decode_failed"), name
    pair.plays(
        fake.accepted(), fake.stream(b'data: {"error":{"message":"m","code":"deadline_exceeded"}}\n\n')
    )
    assert (await pair.fleet.post({"prompt": "hi", "stream": True})).status_code == 504
    await pair.nothing_is_left()


ENDINGS: dict[str, Script] = {
    "reset": (Reset(),),
    "fin": (Fin(),),
    "half an event": (fake.chunk(b'data: {"choices":[{"fin'), Fin()),
    "half an event, clean end": (fake.chunk(b'data: {"choices":[{"fin'), fake.END),
    "clean end without a finish": (fake.END,),
    "bad json": (fake.chunk(b"data: {bad json\n\n"), Hang()),
    "bad chunking": (Send(b"zz\r\n"), Hang()),
    "an engine's error": (fake.chunk(b'data: {"error":{"message":"m","code":"decode_failed"}}\n\n'), Hang()),
    "an error, then done": (fake.chunk(b'data: {"error":{"message":"m"}}\n\n' + DONE), fake.END),
}


async def test_decode_that_dies_within_a_stream_ends_it_with_one_error_event(pair: Pair) -> None:
    whole = event("a") + event("b") + event("c")
    for name, ending in ENDINGS.items():
        pair.plays(fake.accepted(), (fake.stream_head(), fake.chunk(whole), *ending))
        began = time.monotonic()
        answer = await pair.fleet.post({"prompt": "hi", "stream": True})
        assert time.monotonic() - began < SOON_S, name
        assert answer.status_code == 200
        assert answer.content.startswith(whole), name
        rest = answer.content.removeprefix(whole)
        assert rest.startswith(b'data: {"error": '), (name, rest)
        assert rest.find(b"\n\n") == len(rest) - 2, (name, rest)
        error = json.loads(rest.removeprefix(b"data: "))["error"]
        assert error["code"] == "decode_failed", name
        assert error["request_id"] == answer.headers["x-request-id"]
        assert b"[DONE]" not in answer.content
        assert b'"stop"' not in answer.content
    assert await pair.fleet.metric("pdcore_router_broken_streams_total") == len(ENDINGS)
    await pair.nothing_is_left()


async def test_silence_ends_a_stream_by_the_idle_budget_but_no_complete_answer() -> None:
    async with (
        running_fleet(idle_timeout_s=0.4) as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine([(fake.stream_head(), fake.chunk(event("a")), Hang())]) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        answer = await fleet.post({"prompt": "hi", "stream": True})
        error = json.loads(answer.content.removeprefix(event("a")).removeprefix(b"data: "))["error"]
        assert error["code"] == "deadline_exceeded"
        assert "idle budget of 0.4 s" in error["message"]
        head = fake.head(200, {"content-type": "application/json", "content-length": "2", **MARK})
        decode.scripts = [(head, Hang(), Send(b"{}"))]
        asking = asyncio.ensure_future(fleet.post({"prompt": "hi"}))
        await asyncio.wait((asking,), timeout=0.6)
        assert not asking.done()
        decode.release.set()
        assert (await asking).status_code == 200
        await Pair(fleet, prefill, decode).nothing_is_left()


async def test_a_prefill_that_streams_has_handed_over_unless_an_event_says_otherwise(pair: Pair) -> None:
    unmarked = (fake.head(200, fake.CHUNKED | {"content-type": "text/event-stream"}), *GOOD_STREAM[1:])
    failed = fake.stream(b'data: {"error": {"message": "no memory"}}\n\n', DONE)
    broken = fake.stream(b"data: {half\n\n", DONE)
    for prefill, status in ((GOOD_STREAM, 200), (failed, 502), (broken, 502)):
        pair.plays(prefill, unmarked if status == 200 else HANG)
        answer = await pair.fleet.post({"prompt": "hi", "stream": True})
        assert answer.status_code == status
        assert status == 200 or answer.json()["error"]["code"] == "prefill_failed"
        await pair.nothing_is_left()


async def test_after_the_mark_a_prefill_failure_changes_nothing(pair: Pair) -> None:
    late: list[Script] = [said(500), said(400), (Reset(),), fake.answer(200, b"junk")]
    for number, script in enumerate(late):
        pair.decode.release.clear()
        pair.prefill.release.clear()
        pair.plays(
            (Hang(), *script),
            (
                fake.stream_head(),
                fake.chunk(event("a")),
                Hang(),
                fake.chunk(event("b", "stop") + DONE),
                fake.END,
            ),
        )
        async with pair.fleet.client.stream(
            "POST", "/v1/completions", json={"prompt": "hi", "stream": True}
        ) as answer:
            parts = answer.aiter_raw()
            got = await anext(parts)
            pair.prefill.release.set()
            await eventually(lambda: pair.prefill.open_now == 0, SOON_S)
            await eventually(partial(_late_is, pair.fleet, number + 1), SOON_S, "the late failure is counted")
            pair.decode.release.set()
            async for part in parts:
                got += part
        assert got == event("a") + event("b", "stop") + DONE
    await pair.nothing_is_left()


async def _late_is(fleet: Fleet, count: int) -> bool:
    return await fleet.metric("pdcore_router_late_prefill_failures_total") == count


async def test_without_the_mark_the_first_error_decides_even_within_a_stream(pair: Pair) -> None:
    start = (fake.stream_head(mark=False), fake.chunk(event("a")), Hang())
    pair.plays((Hang(), *said(500, "boom")), start)
    async with pair.fleet.client.stream(
        "POST", "/v1/completions", json={"prompt": "hi", "stream": True}
    ) as answer:
        parts = answer.aiter_raw()
        got = await anext(parts)
        pair.prefill.release.set()
        async for part in parts:
            got += part
    error = json.loads(got.removeprefix(event("a")).removeprefix(b"data: "))["error"]
    assert (error["code"], "boom" in error["message"]) == ("prefill_failed", True)
    await pair.nothing_is_left()


async def test_an_error_object_as_body_after_the_mark_is_mapped_by_its_code(pair: Pair) -> None:
    for code, status in (
        ("decode_failed", 502),
        ("prefill_failed", 502),
        ("deadline_exceeded", 504),
        ("invalid_request", 400),
        ("odd", 502),
    ):
        error = {"error": {"message": "said so", "code": code}}
        pair.plays(HANG, fake.answer(200, error, MARK))
        answer = await pair.fleet.post({"prompt": "hi"})
        assert answer.status_code == status, code
        assert "said so" in answer.json()["error"]["message"]
    await pair.nothing_is_left()


@pytest.mark.parametrize(
    ("changes", "stream", "name"),
    [
        ({"first_byte_timeout_s": 0.2}, False, "first byte budget of 0.2 s"),
        ({"request_timeout_s": 0.2}, False, "whole budget of 0.2 s"),
        ({"first_byte_timeout_s": 0.2}, True, "first byte budget of 0.2 s"),
    ],
)
async def test_an_expired_budget_is_504_and_named(changes: dict[str, Any], stream: bool, name: str) -> None:
    async with running_fleet(**changes) as fleet, FakeEngine([HANG]) as prefill, FakeEngine([HANG]) as decode:
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        answer = await fleet.post({"prompt": "hi", "stream": stream})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert name in answer.json()["error"]["message"]
        await Pair(fleet, prefill, decode).nothing_is_left()


async def test_a_stream_may_outlast_the_whole_budget() -> None:
    async with (
        running_fleet(request_timeout_s=0.3) as fleet,
        FakeEngine([fake.accepted()]) as prefill,
        FakeEngine(
            [
                (
                    fake.stream_head(),
                    fake.chunk(event("a")),
                    Hang(),
                    *map(fake.chunk, (event("b", "stop"), DONE)),
                    fake.END,
                )
            ]
        ) as decode,
    ):
        await fleet.add("p", "prefill", prefill)
        await fleet.add("d", "decode", decode)
        asking = asyncio.ensure_future(fleet.post({"prompt": "hi", "stream": True}))
        await asyncio.wait((asking,), timeout=0.5)
        assert not asking.done()
        decode.release.set()
        assert (await asking).content == event("a") + event("b", "stop") + DONE
        assert int(decode.seen[0].headers["x-pdcore-remaining-ms"]) > 86_000_000


async def test_one_event_may_not_grow_without_bound(pair: Pair) -> None:
    pair.plays(
        fake.accepted(), (fake.stream_head(), fake.Flood(b"10000\r\n" + b"x" * 65536 + b"\r\n", 100), Hang())
    )
    answer = await pair.fleet.post({"prompt": "hi", "stream": True})
    assert (answer.status_code, "larger than" in answer.text) == (502, True)
    await pair.nothing_is_left()


async def test_bad_input_touches_no_engine(pair: Pair) -> None:
    pair.plays(fake.accepted(), GOOD)
    elsewhere = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 9999}
    empty: tuple[object, ...] = ("", [], [""], [[]])
    wrong: list[dict[str, object]] = [{"prompt": value} for value in empty]
    wrong += [{"prompt": "a", "bootstrap_room": room} for room in (0, -1, 2**63, "7", True)]
    wrong += [{"prompt": "a", **elsewhere}, {"prompt": "a", "disagg_prefill_dp_rank": 1}]
    wrong += [{"prompt": "a", "n": n, "stream": True} for n in (0, "3", 1_000_000)]
    wrong += [{"prompt": "a", "logprobs": value} for value in (-1, "5", 1.5)]
    cases: list[tuple[dict[str, object] | bytes, int]] = [(body, 400) for body in wrong]
    cases += [({"prompt": "a", "model": "nobody"}, 404), (b"{", 400), (b"x" * (1 << 20) + b"y", 413)]
    for body, status in cases:
        answer = await pair.fleet.post(body)
        assert answer.status_code == status, body
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    assert (await pair.fleet.post({"prompt": "a"}, headers={"content-encoding": "gzip"})).status_code == 415
    assert (await pair.fleet.post({"prompt": "a"}, headers={"x-request-id": "a b"})).status_code == 400
    for messages in ([], [{"role": "user", "content": ""}], [{"role": "user", "content": []}]):
        answer = await pair.fleet.post({"messages": messages, "stream": True}, "/v1/chat/completions")
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        assert answer.json()["error"]["param"].startswith("messages")
    assert not pair.prefill.seen
    assert not pair.decode.seen
    assert (await pair.fleet.post({"prompt": "   "})).status_code == 200, "a blank is a token"
    await pair.nothing_is_left()


async def test_a_client_can_pin_a_registered_prefill_and_nothing_else_is_ever_connected_to(
    pair: Pair,
) -> None:
    async with FakeEngine([fake.accepted()]) as outsider, FakeEngine([fake.accepted()]) as other:
        await pair.fleet.add("p2", "prefill", other, bootstrap_port=18801)
        for _ in range(3):
            pinned = {"prompt": "a", "bootstrap_host": "127.0.0.1", "bootstrap_port": 18801}
            assert (await pair.fleet.post(pinned)).headers["x-pdcore-pair"] == "p2,d"
        hostile = {"bootstrap_host": "127.0.0.1", "bootstrap_port": outsider.port}
        nested = {"extra_body": hostile, "x": [hostile], "prompt": "a"}
        for body, status in (
            ({"prompt": "a", **hostile}, 400),
            ({"prompt": "a", "BOOTSTRAP_HOST": "127.0.0.1", "BOOTSTRAP_PORT": outsider.port}, 400),
            ({"prompt": "a", "kv_transfer_params": hostile}, 400),
            (nested, 200),
        ):
            assert (await pair.fleet.post(body)).status_code == status
        sent = {"x-bootstrap-host": f"127.0.0.1:{outsider.port}", "x-forwarded-host": outsider.url}
        assert (await pair.fleet.post({"prompt": "a"}, headers=sent)).status_code == 200
        assert outsider.connections == 0
    await pair.fleet.settled()
