"""What every transport does, on real sockets: the router's own, and httpx as the reference."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from pdcore.beside import running_beside
from pdcore.router.upstream import Broken, NotConnected, Post, Upstream
from pdcore.router.wire_upstream import WireUpstream
from tests.support import fake_engines as fake
from tests.support.asking import posted
from tests.support.eventually import eventually
from tests.support.fake_engines import FakeEngine, Fin, Flood, Hang, Reset, Script, Send
from tests.support.httpx_upstream import HttpxUpstream

pytestmark = [pytest.mark.contract]

Make = Callable[[], Upstream]

SOON_S = 3.0
GOOD: Script = fake.answer(200, {"a": 1})


def wire(**changes: Any) -> WireUpstream:
    return WireUpstream(**{"connect_timeout_s": 0.5, **changes})


def reference() -> HttpxUpstream:
    return HttpxUpstream(connect_timeout_s=0.5, write_timeout_s=5)


@pytest.fixture(params=[wire, reference], ids=["wire", "httpx"])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


def asking(url: str, body: bytes = b"{}") -> Post:
    return Post(url=url, headers={"x-request-id": "r"}, body=body)


async def whole(upstream: Upstream, url: str) -> tuple[int, bytes]:
    async with asyncio.timeout(SOON_S), posted(upstream, asking(url)) as answer:
        body = b""
        while part := await answer.read():
            body += part
        return answer.status, body


async def test_a_request_arrives_as_it_was_made_and_the_answer_as_it_was_given(make: Make) -> None:
    script = fake.answer(200, {"a": 1}, {"X-Pdcore-KV": "received"})
    async with FakeEngine([script]) as engine, make() as upstream:
        post = Post(url=f"{engine.url}/v1/x?y=1", headers={"traceparent": "t"}, body=b'{"p":"\xc3\xbc"}')
        async with posted(upstream, post) as answer:
            assert (answer.status, answer.headers["x-pdcore-kv"]) == (200, "received")
            assert json.loads(await answer.read()) == {"a": 1}
            assert await answer.read() == b""
            assert await answer.read() == b""
    (seen,) = engine.seen
    assert (seen.method, seen.path, seen.body) == ("POST", "/v1/x?y=1", post.body)
    sent = {"traceparent": "t", "content-type": "application/json", "accept-encoding": "identity"}
    assert sent.items() <= seen.headers.items()
    assert seen.headers["host"] == engine.url.removeprefix("http://")


async def test_an_answer_that_was_read_leaves_its_connection_to_the_next_request(make: Make) -> None:
    scripts = [GOOD, fake.stream(fake.event("a", "stop"), fake.DONE), fake.answer(500, {}), GOOD]
    async with FakeEngine([*scripts]) as engine, make() as upstream:
        statuses = [(await whole(upstream, engine.url))[0] for _ in scripts]
        assert statuses == [200, 200, 500, 200]
        assert engine.connections == 1


async def test_many_at_once_have_a_connection_each_and_share_them_later(make: Make) -> None:
    async with FakeEngine([GOOD]) as engine, make() as upstream:
        for _ in range(2):
            got = await asyncio.gather(*(whole(upstream, engine.url) for _ in range(16)))
            assert got == [(200, b'{"a": 1}')] * 16
        assert engine.connections <= 16


async def test_parts_are_handed_over_as_they_come(make: Make) -> None:
    script = (fake.stream_head(), fake.chunk(b"one"), Hang(), fake.chunk(b"two"), fake.END)
    async with FakeEngine([script]) as engine, make() as upstream, asyncio.timeout(SOON_S):
        async with posted(upstream, asking(engine.url)) as answer:
            assert await answer.read() == b"one"
            engine.release.set()
            assert await answer.read() == b"two"
            assert await answer.read() == b""


HEAD = fake.head(200, {"content-type": "application/json", "content-length": "100"})
BROKEN: dict[str, Script] = {
    "reset at once": (Reset(),),
    "fin at once": (Fin(),),
    "garbage": (Send(b"\x00\x01\r\n\r\n"), Fin()),
    "not http": (Send(b"SSH-2.0-x\r\n"), Fin()),
    "half a head": (Send(b"HTTP/1.1 200 OK\r\nconte"), Fin()),
    "fin after the head": (HEAD, Fin()),
    "40 of 100 bytes": (HEAD, Send(b"x" * 40), Fin()),
    "reset within the body": (HEAD, Send(b"x" * 40), Reset()),
    "half a chunk": (fake.stream_head(), Send(b"ff\r\nhalf"), Fin()),
    "no last chunk": (fake.stream_head(), fake.chunk(b"x"), Fin()),
    "bad chunking": (fake.stream_head(), Send(b"zz\r\n"), Hang()),
    "not gzip": fake.answer(200, b"plain", {"content-encoding": "gzip"}),
}


async def test_an_answer_that_ends_early_or_is_none_is_broken_and_the_next_one_fine(make: Make) -> None:
    for name, script in BROKEN.items():
        async with FakeEngine([script, GOOD]) as engine, make() as upstream:
            with pytest.raises(Broken):
                raise AssertionError((name, await whole(upstream, engine.url)))
            assert await whole(upstream, engine.url) == (200, b'{"a": 1}'), name


async def test_nobody_there_is_not_connected(make: Make) -> None:
    async with FakeEngine([GOOD]) as engine:
        await engine.refuse()
        async with make() as upstream:
            with pytest.raises(NotConnected) as refused:
                await whole(upstream, engine.url)
            assert not refused.value.timed_out


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1/", "http:///x", "nonsense"])
async def test_a_url_that_leads_nowhere_is_not_connected(make: Make, url: str) -> None:
    async with make() as upstream:
        with pytest.raises(NotConnected) as refused:
            await whole(upstream, url)
        assert not refused.value.timed_out


@contextmanager
def deaf() -> Iterator[str]:
    """The address of somebody who listens and never takes a connection: new ones get no answer at all."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_no_connection_within_its_budget_says_so(make: Make) -> None:
    with deaf() as url:
        async with make() as upstream:
            began = time.monotonic()
            with pytest.raises(NotConnected) as expired:
                await whole(upstream, url)
            assert expired.value.timed_out
            assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("script", [(Hang(),), (HEAD, Hang())], ids=["before the head", "within the body"])
async def test_whoever_is_cancelled_closes_the_connection_however_often_that_is(
    make: Make, script: Script
) -> None:
    async with FakeEngine([script]) as engine, make() as upstream:
        for times in (1, 2):
            asked = asyncio.ensure_future(whole(upstream, engine.url))
            await eventually(lambda: engine.open_now == 1, SOON_S)
            for _ in range(times):
                asked.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await asked
            await eventually(lambda: engine.open_now == 0, SOON_S, "the engine saw the end")
        assert engine.left == 2


async def test_an_answer_left_early_is_not_read_by_the_next_request(make: Make) -> None:
    async with FakeEngine([(HEAD, Send(b"x" * 40), Hang()), GOOD]) as engine, make() as upstream:
        async with asyncio.timeout(SOON_S), posted(upstream, asking(engine.url)) as answer:
            assert await answer.read()
        assert await whole(upstream, engine.url) == (200, b'{"a": 1}')
        await eventually(lambda: engine.open_now == 0, SOON_S, "the engine saw the end")


async def test_an_engine_is_held_back_by_who_does_not_read(make: Make) -> None:
    part = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
    script = (fake.stream_head(), Flood(part, 1000), fake.END)
    async with FakeEngine([script]) as engine, make() as upstream, asyncio.timeout(10):
        async with posted(upstream, asking(engine.url)) as answer:
            await eventually(_stands_still(engine), SOON_S, "nothing flows any more")
            assert engine.flooded < 24 << 20, "what the sockets hold, and little more"
            size = 0
            while got := await answer.read():
                size += len(got)
        assert size == 1000 << 16


def _stands_still(engine: FakeEngine) -> Callable[[], bool]:
    """True once twenty looks in a row saw the same."""
    looks: list[int] = []

    def look() -> bool:
        looks.append(engine.flooded)
        return len(looks) > 20 and looks[-1] == looks[-20] > 0

    return look


async def test_an_encoding_nobody_asked_for_is_undone(make: Make) -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    scripts = [
        fake.answer(200, packed, {"content-encoding": "gzip"}),
        (fake.head(200, {**fake.CHUNKED, "content-encoding": "gzip"}), fake.chunk(packed), fake.END),
        fake.answer(200, b"plain", {"content-encoding": "identity"}),
    ]
    async with FakeEngine([*scripts]) as engine, make() as upstream:
        assert [len((await whole(upstream, engine.url))[1]) for _ in scripts] == [1_000_000, 1_000_000, 5]


async def test_nothing_is_followed_and_nothing_in_the_environment_is_obeyed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    moved = (fake.head(307, {"location": "http://127.0.0.1:9/", "content-length": "0"}),)
    async with FakeEngine([moved]) as engine, make() as upstream:
        assert await whole(upstream, engine.url) == (307, b"")


async def test_a_connection_closed_on_this_side_before_the_answer_counts_as_none(make: Make) -> None:
    async with FakeEngine([(Hang(),)]) as engine:
        upstream = make()

        async def close_its_connections() -> None:
            await eventually(lambda: engine.seen, 5, "the request has arrived")
            await upstream.__aexit__()

        async with upstream:
            with pytest.raises(NotConnected, match="the pool closed the connection"):
                await _ask_while(upstream, engine.url, close_its_connections())


async def _ask_while(upstream: Upstream, url: str, meanwhile: Coroutine[object, object, None]) -> None:
    async with running_beside(meanwhile), posted(upstream, asking(url)):
        raise AssertionError("an answer")


async def test_what_nobody_needs_any_more_is_closed_after_a_while_or_at_the_end() -> None:
    async with FakeEngine([GOOD]) as engine:
        async with wire(keepalive_s=0.1) as upstream:
            await asyncio.gather(*(whole(upstream, engine.url) for _ in range(4)))
            assert upstream.open_connections
            await eventually(lambda: upstream.open_connections == 0, SOON_S, "idle connections are closed")
            assert await whole(upstream, engine.url) == (200, b'{"a": 1}')
        assert upstream.open_connections == 0


async def test_a_connection_that_the_engine_closed_is_not_used() -> None:
    async with FakeEngine([(*GOOD, Fin()), GOOD]) as engine, wire() as upstream:
        await whole(upstream, engine.url)
        await eventually(lambda: upstream.open_connections == 0, SOON_S, "its end is noticed while idle")
        assert await whole(upstream, engine.url) == (200, b'{"a": 1}')


async def test_an_encoding_nobody_knows_is_broken() -> None:
    async with FakeEngine([fake.answer(200, b"x", {"content-encoding": "br"})]) as engine, wire() as upstream:
        with pytest.raises(Broken, match="'br', which nobody asked for"):
            await whole(upstream, engine.url)
