"""Our HTTP protocol class is what uvicorn's own is to an application and to a client, and tells of a departure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx
import pytest
import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from pdcore.http_head import MAX_HEAD_BYTES, BoundedHead
from pdcore.http_server import answering, listen, port_of
from pdcore.router.departure import DEPARTURE
from pdcore.router.upstream import Post
from pdcore.router.wire_server import ServerConnection
from pdcore.router.wire_upstream import WireUpstream
from tests.support.asking import Reading, posted
from tests.support.eventually import eventually

pytestmark = [pytest.mark.contract]

SOON_S = 3.0
POST = b"POST /x?y=1 HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b"


@pytest.fixture(params=[ServerConnection, BoundedHead], ids=["wire", "uvicorn"])
def protocol(request: pytest.FixtureRequest) -> type[asyncio.Protocol]:
    chosen: type[asyncio.Protocol] = request.param
    return chosen


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(SOON_S):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(SOON_S):
            return await self.reader.read()


@asynccontextmanager
async def served(app: ASGIApp, protocol: Callable[..., asyncio.Protocol]) -> AsyncIterator[Client]:
    listener = listen("127.0.0.1", 0, "port")
    async with answering(app, listener, protocol=protocol):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(listener))
        try:
            yield Client(reader, writer)
        finally:
            writer.transport.abort()


async def whole_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body, more = body + message["body"], message["more_body"]
    return body


async def answer(send: Send, *parts: bytes, status: int = 200, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The request's body, with its length."""
    body = await whole_body(receive)
    await answer(send, body, headers=[(b"content-length", str(len(body)).encode())])


async def test_an_application_sees_the_request_as_it_was_sent(protocol: type[asyncio.Protocol]) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await answer(send)

    async with served(app, protocol) as client:
        await client.send(b"PUT /a%20b/c?d=%20 HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nx-one: 2\r\n\r\n")
        await client.until(b"0\r\n\r\n")
    (scope,) = seen
    found = {name: scope[name] for name in ("type", "method", "path", "raw_path", "query_string", "scheme")}
    assert found == {
        **{"type": "http", "method": "PUT", "path": "/a b/c", "raw_path": b"/a%20b/c"},
        **{"query_string": b"d=%20", "scheme": "http"},
    }
    assert scope["headers"] == [(b"host", b"h"), (b"x-one", b"1"), (b"x-one", b"2")]
    assert scope["http_version"] == "1.1"


@pytest.mark.parametrize("size", [0, 5, 1_000_000])
async def test_a_body_of_any_size_arrives(protocol: type[asyncio.Protocol], size: int) -> None:
    async with served(echo, protocol) as client:
        for _ in range(2):
            sending = asyncio.ensure_future(client.send(POST % (size, b"x" * size)))
            head = await client.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"content-length: %d\r\n" % size in head
            async with asyncio.timeout(SOON_S):
                assert await client.reader.readexactly(size) == b"x" * size
            await sending


async def test_a_body_may_come_in_chunks_and_slowly(protocol: type[asyncio.Protocol]) -> None:
    async with served(echo, protocol) as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in (b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n"):
            await client.send(part)
            await asyncio.sleep(0)
        assert (await client.until(b"abcde")).endswith(b"\r\n\r\nabcde")


async def test_an_answer_without_a_length_is_chunked_and_leaves_the_connection(
    protocol: type[asyncio.Protocol],
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"one", b"", b"two")

    async with served(app, protocol) as client:
        for _ in range(2):
            await client.send(POST % (2, b"{}"))
            got = await client.until(b"0\r\n\r\n")
            assert got.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
            assert b"transfer-encoding: chunked\r\n" in got


async def test_requests_that_come_together_are_answered_in_turn(protocol: type[asyncio.Protocol]) -> None:
    running = most = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        body = await whole_body(receive)
        await asyncio.sleep(0)
        running -= 1
        await answer(send, body + b"!", headers=[(b"content-length", b"2")])

    async with served(app, protocol) as client:
        await client.send(b"".join(POST % (1, b"%d" % number) for number in range(5)))
        got = b"".join([await client.until(b"!") for _ in range(5)])
        assert [part[-1:] for part in got.split(b"!")[:-1]] == [b"0", b"1", b"2", b"3", b"4"]
    assert most == 1


@pytest.mark.parametrize(
    ("request_head", "ends"),
    [
        (b"POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", b"{}"),
        (b"POST / HTTP/1.0\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}", b"{}"),
    ],
)
async def test_a_client_that_wants_one_answer_gets_one_and_the_end(
    protocol: type[asyncio.Protocol], request_head: bytes, ends: bytes
) -> None:
    async with served(echo, protocol) as client:
        await client.send(request_head)
        got = await client.rest()
        assert got.endswith(b"\r\n\r\n" + ends)
        assert b"connection: close\r\n" in got


async def test_an_application_can_end_the_connection(protocol: type[asyncio.Protocol]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, headers=[(b"connection", b"close"), (b"content-length", b"0")])

    async with served(app, protocol) as client:
        await client.send(POST % (0, b""))
        assert (await client.rest()).count(b"connection: close") == 1


async def test_the_head_is_all_that_a_head_request_gets(protocol: type[asyncio.Protocol]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"x" * 9, headers=[(b"content-length", b"9")])

    async with served(app, protocol) as client:
        await client.send(b"HEAD / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        got = await client.rest()
        assert b"content-length: 9\r\n" in got
        assert got.endswith(b"\r\n\r\n")


async def test_a_client_that_asks_first_is_told_to_go_on(protocol: type[asyncio.Protocol]) -> None:
    async with served(echo, protocol) as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"{}")
        assert (await client.until(b"{}")).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "sent", [b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x00", b"POST / HTTP/1.1\r\na b: c\r\n\r\n"]
)
async def test_what_is_no_request_is_400_and_the_end(protocol: type[asyncio.Protocol], sent: bytes) -> None:
    async with served(echo, protocol) as client:
        await client.send(sent)
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


async def test_a_head_without_end_is_431_and_the_end(protocol: type[asyncio.Protocol]) -> None:
    async with served(echo, protocol) as client:
        await client.send(b"POST / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1))
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_a_long_head_that_came_at_once_is_431_to_whoever_reads_last(
    protocol: type[asyncio.Protocol],
) -> None:
    async with served(echo, protocol) as client:
        await client.send(b"POST / HTTP/1.1\r\nx: " + b"y" * (4 << 20))
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def refuse_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, b"no", status=413, headers=[(b"content-length", b"2")])


async def refuse_on_the_way(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await refuse_at_once(scope, receive, send)


LARGE = b"x" * (9 << 20)
LARGE_POSTS = {
    "announced": b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n%%b\r\n" % len(LARGE) + LARGE,
    "chunked": b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n%b\r\n"
    + b"%x\r\n" % len(LARGE)
    + LARGE
    + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("app", [refuse_at_once, refuse_on_the_way])
@pytest.mark.parametrize("post", LARGE_POSTS.values(), ids=LARGE_POSTS)
async def test_an_early_answer_reaches_whoever_sends_everything_first(
    protocol: type[asyncio.Protocol], app: ASGIApp, post: bytes
) -> None:
    async with served(app, protocol) as client:
        await client.send(post.replace(b"%b", b""))
        assert (await client.until(b"\r\n\r\nno")).startswith(b"HTTP/1.1 413 ")
        await client.send(post.replace(b"%b", b"connection: close\r\n"))
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 413 ")
        assert got.endswith(b"\r\n\r\nno")


@pytest.mark.parametrize(
    ("bounds", "sent"),
    [({"most_dropped_bytes": 1 << 20}, LARGE), ({"dropped_within_s": 0.2}, b"x")],
    ids=["bytes", "time"],
)
async def test_whoever_goes_on_sending_after_the_answer_is_cut_off(
    protocol: type[asyncio.Protocol], bounds: dict[str, Any], sent: bytes
) -> None:
    strict = (
        partial(protocol, **bounds) if protocol is ServerConnection else type("Strict", (protocol,), bounds)
    )
    async with served(refuse_at_once, strict) as client:
        await client.send(
            b"POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 99999999\r\n\r\n"
        )
        await client.until(b"\r\n\r\nno")
        with suppress(ConnectionError):
            await client.send(sent)
            assert await client.rest() == b""


async def test_a_client_that_leaves_is_told_of_while_the_application_waits(
    protocol: type[asyncio.Protocol],
) -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await whole_body(receive)
        scope.get("extensions", {}).get(DEPARTURE, lambda _: None)(lambda: told.append("called"))
        told.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"to nobody", "more_body": False})

    async with served(app, protocol) as client:
        await client.send(POST % (2, b"{}"))
        client.writer.transport.abort()
        await eventually(lambda: "http.disconnect" in told, SOON_S, "the application was told")
    assert told == (["called"] if protocol is ServerConnection else []) + ["http.disconnect"]


async def test_a_departure_is_told_once_and_not_after_the_answer() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        departure: Callable[[Callable[[], None]], None] = scope["extensions"][DEPARTURE]
        departure(lambda: told.append("left"))
        await answer(send)
        told.append("answered")

    async with served(app, ServerConnection) as client:
        await client.send(POST % (0, b""))
        await client.until(b"0\r\n\r\n")
    assert told == ["answered"]


async def test_a_client_that_reads_nothing_holds_the_application_back(
    protocol: type[asyncio.Protocol],
) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent += 65536

    async with served(app, protocol) as client:
        await client.send(POST % (0, b""))
        looks: list[int] = []

        def stands_still() -> bool:
            looks.append(sent)
            return len(looks) > 20 and looks[-1] == looks[-20] > 0

        await eventually(stands_still, SOON_S, "it waits")
        assert sent < 64 << 20
        client.writer.transport.abort()


def impatient(config: uvicorn.Config, *others: Any, **named: Any) -> ServerConnection:
    """One whose bounds in time are for tests."""
    return ServerConnection(config, *others, **named, keep_alive_s=0.2, head_within_s=0.2)


@pytest.mark.parametrize(
    ("sent", "got"), [(b"", b""), (b"POST / HT", b""), (POST % (0, b""), b"HTTP/1.1 200 OK")]
)
async def test_a_connection_on_which_nothing_happens_is_closed(sent: bytes, got: bytes) -> None:
    async with served(echo, impatient) as client:
        await client.send(sent)
        assert (await client.rest()).startswith(got)


async def test_a_request_that_takes_its_time_is_not_idle() -> None:
    released = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await released.wait()
        await answer(send, b"late")

    async with served(app, impatient) as client:
        await client.send(POST % (0, b""))
        asyncio.get_running_loop().call_later(0.5, released.set)
        assert b"late" in await client.rest()


async def test_a_client_that_wants_another_protocol_gets_its_answer_and_the_end() -> None:
    upgrade = b"GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    async with served(echo, ServerConnection) as client:
        await client.send(upgrade + b"PRI * HTTP/2.0\r\n\r\n")
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 200 OK")
        assert got.count(b"HTTP/1.1") == 1


Broken = Callable[[Send], Awaitable[None]]


async def _raises(send: Send) -> None:
    raise RuntimeError("a bug")


async def _says_nothing(send: Send) -> None:
    return


async def _stops_short(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
    await send({"type": "http.response.body", "body": b"short", "more_body": True})


@pytest.mark.parametrize("broken", [_raises, _says_nothing, _stops_short])
async def test_an_application_that_fails_is_500_or_a_cut_answer_and_the_server_lives(
    protocol: type[asyncio.Protocol], broken: Broken
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await answer(send)
        else:
            await broken(send)

    listener = listen("127.0.0.1", 0, "port")
    async with answering(app, listener, protocol=protocol):
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port_of(listener)}", trust_env=False, verify=False
        ) as client:
            if broken is _stops_short:
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.get("/bad")
            else:
                assert (await client.get("/bad")).status_code == 500
            assert (await client.get("/good")).status_code == 200


def test_both_ends_of_a_wire_work_on_the_loop_that_routers_run_on() -> None:
    """Tests have asyncio's own loop, whose transports are others."""

    async def talk() -> None:
        listener = listen("127.0.0.1", 0, "port")
        url = f"http://127.0.0.1:{port_of(listener)}/"
        async with answering(echo, listener, protocol=ServerConnection), wire_upstream() as upstream:
            for size in (0, 5, 3_000_000, 5):  # beyond what either end holds
                post = Post(url=url, headers={}, body=b"x" * size)
                async with asyncio.timeout(SOON_S), posted(upstream, post) as got:
                    assert await _whole(got) == post.body
            assert upstream.open_connections == 1
        assert upstream.open_connections == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


def wire_upstream() -> WireUpstream:
    return WireUpstream(connect_timeout_s=SOON_S)


async def _whole(got: Reading) -> bytes:
    body = b""
    while part := await got.read():
        body += part
    return body
