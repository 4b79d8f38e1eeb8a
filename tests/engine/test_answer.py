"""One answer on its way out: how an error is told at each stage, clients that do not read, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from pdcore.engine.answer import Answer, ClientGone, read_body, while_connected
from pdcore.errors import ApiError

pytestmark = pytest.mark.unit

ERROR = ApiError("decode_failed", "lost", detail={"status": 500})


class Client:
    """Collects what is sent; ``leave`` is what ``receive`` waits for."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.left = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.messages.append(message)

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        return not self.messages[-1].get("more_body", True)

    def header(self, name: str) -> str | None:
        found = dict(self.messages[0]["headers"]).get(name.encode())
        return None if found is None else found.decode()


async def test_a_failure_before_anything_is_a_status() -> None:
    client = Client()
    await Answer(client.send, "r").fail(ApiError("rate_limited", "full", retry_after_s=3))
    assert (client.status, client.header("retry-after"), client.header("x-request-id")) == (429, "3", "r")
    assert json.loads(client.body)["error"]["request_id"] == "r"
    assert client.header("content-length") == str(len(client.body))
    assert client.complete


async def test_a_failure_of_a_stream_is_an_event_and_its_end() -> None:
    client = Client()
    answer = Answer(client.send, "r")
    await answer.begin_stream({"x-pdcore-kv": "received"})
    await answer.stream(b"data: 1\n\n")
    await answer.fail(ERROR)
    events = client.body.split(b"\n\n")
    assert json.loads(events[1][6:])["error"]["detail"] == {"status": 500}
    assert (events[0], events[2], len(events)) == (b"data: 1", b"", 3)
    assert client.header("content-length") is None
    assert client.complete


async def test_a_failure_after_an_early_head_is_the_body() -> None:
    client = Client()
    answer = Answer(client.send, "r")
    await answer.begin_json({})
    await answer.fail(ERROR)
    assert client.status == 200
    assert json.loads(client.body)["error"]["code"] == "decode_failed"
    assert client.complete


async def test_a_failure_after_the_end_is_told_to_nobody() -> None:
    client = Client()
    answer = Answer(client.send, "r")
    await answer.json({"ok": True})
    await answer.fail(ERROR)
    assert json.loads(client.body) == {"ok": True}


async def test_a_client_that_does_not_read_ends_its_answer() -> None:
    client = Client()
    answer = Answer(client.send, "r", write_idle_s=0.02)
    await answer.begin_stream({})
    client.reads.clear()
    with pytest.raises(ClientGone, match="read nothing"):
        await answer.stream(b"x" * 1000)


async def test_work_goes_on_while_the_client_is_there() -> None:
    client = Client()
    answer = Answer(client.send, "r")
    await while_connected(client.receive, answer, answer.json({}))
    assert client.complete


async def test_a_client_that_leaves_cancels_the_work() -> None:
    client = Client()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    client.left.set()
    with pytest.raises(ClientGone):
        await while_connected(client.receive, Answer(client.send, "r"), work())
    assert cancelled.is_set()


async def test_a_disconnect_after_the_end_is_no_failure() -> None:
    client = Client()
    answer = Answer(client.send, "r")

    async def work() -> None:
        await answer.json({})
        client.left.set()
        for _ in range(3):
            await asyncio.sleep(0)

    await while_connected(client.receive, answer, work())


async def test_the_works_own_error_comes_out_as_it_is() -> None:
    client = Client()

    async def work() -> None:
        raise ERROR

    with pytest.raises(ApiError) as caught:
        await while_connected(client.receive, Answer(client.send, "r"), work())
    assert caught.value is ERROR


async def test_a_deadline_around_it_reaches_the_work() -> None:
    client = Client()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await while_connected(client.receive, Answer(client.send, "r"), asyncio.Event().wait())  # type: ignore[arg-type]


def receiving(*messages: Message) -> Callable[[], Awaitable[Message]]:
    left = list(messages)

    async def receive() -> Message:
        return left.pop(0)

    return receive


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def body(*messages: Message, limit: int = 10, **headers: str) -> bytes:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return await read_body({"type": "http", "headers": raw}, receiving(*messages), limit)


async def test_a_body_is_read_whole() -> None:
    assert await body(part(b"abc"), part(b"de", more=False)) == b"abcde"
    assert await body(part(b"x" * 10, more=False), content_length="10") == b"x" * 10


@pytest.mark.parametrize("announced", ["11", "9" * 50])
async def test_a_body_announced_too_large_is_not_even_read(announced: str) -> None:
    with pytest.raises(ApiError) as caught:
        await body(content_length=announced)
    assert caught.value.status == 413


async def test_a_body_is_refused_as_soon_as_it_is_too_large() -> None:
    with pytest.raises(ApiError) as caught:
        await body(part(b"x" * 6), part(b"x" * 6))
    assert caught.value.status == 413


async def test_compressed_bodies_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        await body(part(b"", more=False), content_encoding="gzip")
    assert caught.value.status == 415
    assert await body(part(b"", more=False), content_encoding="Identity") == b""


async def test_a_client_that_leaves_in_its_body_is_gone() -> None:
    with pytest.raises(ClientGone):
        await body(part(b"a"), {"type": "http.disconnect"})
