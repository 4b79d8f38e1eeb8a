"""One connection, byte by byte: whatever the cuts, the same answer; whatever strays in, no second request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.upstream import Broken, NotConnected, State
from pdcore.router.wire_connection import MAX_HEAD_BYTES, MOST_AHEAD_BYTES, Connection, Reply
from tests.support.asking import Reading

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nx-trailer: 1\r\n\r\n"
)
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nx-twice: 1\r\nx-twice: 2\r\n\r\nhello world"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport without a network: keeps what is written, and what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Asked(Reading):
    """A request on a :class:`Line`, read like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = Reply(self.bell.ring)
        self.call = _Unclosed(self.reply)


class _Unclosed:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.take, self.failure, self.close = reply.take, reply.failure, reply.forget
        self.offer_frames = reply.offer_frames

    @property
    def state(self) -> State:
        return self._reply.state

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._reply.headers


class Line:
    """A connection over a :class:`Wire`."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.closed: list[Connection] = []
        self.connection = Connection(self.closed.append)
        self.connection.connection_made(self.wire)

    def ask(self, body: bytes = b"body") -> Asked:
        asked = Asked()
        self.connection.send(asked.reply, b"head", body)
        return asked

    def hears(self, *parts: bytes) -> None:
        for part in parts:
            if not self.wire.aborted:
                self.connection.data_received(part)


async def whole(reply: Asked) -> bytes:
    """The body, which has to be there already."""
    async with asyncio.timeout(2):
        await reply.head()
        body = b""
        while part := await reply.read():
            body += part
    return body


@few
@given(st.sampled_from([CHUNKED, LENGTH, EARLY + CHUNKED, EARLY + LENGTH]), st.data())
def test_however_an_answer_is_cut_it_is_the_same_and_the_connection_serves_again(
    answer: bytes, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]

    async def twice() -> None:
        line = Line()
        for _ in range(2):
            reply = line.ask()
            line.hears(*(part for part in parts if part))
            assert await whole(reply) == b"hello world"
            assert reply.status == 200
            assert ("content-length" in reply.headers) == answer.endswith(LENGTH)
            assert not {"x-trailer", "link"} & set(reply.headers)
            assert reply.headers.get("x-twice", "1, 2") == "1, 2"
            assert line.connection.release()
        assert line.wire.written == b"headbody" * 2

    asyncio.run(twice())


@few
@given(st.data())
def test_an_answer_that_ends_early_is_broken_at_every_byte(data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from([CHUNKED, LENGTH]))
    end = data.draw(st.integers(0, len(answer) - 1))

    async def cut() -> None:
        line = Line()
        reply = line.ask()
        line.hears(answer[:end])
        line.connection.connection_lost(data.draw(st.sampled_from([None, ConnectionResetError()])))
        with pytest.raises(Broken):
            await whole(reply)
        assert line.closed == [line.connection]
        assert not line.connection.release()

    asyncio.run(cut())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno", b"no"),
    ],
)
async def test_short_answers_are_whole(answer: bytes, body: bytes) -> None:
    line = Line()
    reply = line.ask()
    line.hears(answer)
    assert await whole(reply) == body
    assert line.connection.release()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        LENGTH + b"HTTP/1.1 200 OK\r\n",
        LENGTH + LENGTH,
        LENGTH + b"garbage",
        CHUNKED + b"0\r\n\r\n",
    ],
)
async def test_a_connection_that_said_more_or_says_goodbye_serves_no_second_request(answer: bytes) -> None:
    line = Line()
    reply = line.ask()
    line.hears(answer)
    assert await whole(reply) in (b"hello world", b"{}")
    assert not line.connection.release()
    assert line.wire.aborted


async def test_an_answer_without_a_length_ends_with_its_connection_but_not_by_a_reset() -> None:
    for error, is_whole in ((None, True), (ConnectionResetError("reset"), False)):
        line = Line()
        reply = line.ask()
        line.hears(b"HTTP/1.1 200 OK\r\n\r\nhello", b" world")
        line.connection.connection_lost(error)
        if is_whole:
            assert await whole(reply) == b"hello world"
        else:
            with pytest.raises(Broken, match="reset"):
                await whole(reply)
        assert not line.connection.release()


async def test_bytes_to_nobody_end_the_connection() -> None:
    line = Line()
    line.hears(LENGTH)
    assert line.wire.aborted
    assert not line.connection.usable


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"\x00\x01\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_broken(answer: bytes) -> None:
    line = Line()
    reply = line.ask()
    line.hears(answer)
    with pytest.raises(Broken, match="not HTTP"):
        await whole(reply)
    assert line.wire.aborted


async def test_a_head_is_bounded_also_when_it_is_many() -> None:
    for flood in (b"x: " + b"y" * MAX_HEAD_BYTES, b"\r\nHTTP/1.1 103 Early\r\n\r\n" * (MAX_HEAD_BYTES // 20)):
        line = Line()
        reply = line.ask()
        line.hears(b"HTTP/1.1 103 Early\r\n", *(flood[at : at + 4096] for at in range(0, len(flood), 4096)))
        with pytest.raises(Broken, match="head is larger"):
            await whole(reply)


async def test_a_reader_that_waits_lets_the_engine_wait_and_nothing_is_lost() -> None:
    line = Line()
    reply = line.ask()
    part = b"x" * 32768
    line.hears(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    sent = 0
    while line.wire.reading:
        line.hears(b"8000\r\n" + part + b"\r\n")
        sent += len(part)
    assert MOST_AHEAD_BYTES < sent <= MOST_AHEAD_BYTES + len(part)
    assert len(await reply.read()) == sent
    assert line.wire.reading
    line.hears(b"0\r\n\r\n")
    assert await reply.read() == b""
    assert line.connection.release()


async def test_an_unread_answer_that_is_complete_leaves_a_connection_that_reads() -> None:
    line = Line()
    line.ask()
    line.hears(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100000)
    assert not line.wire.reading
    assert line.connection.release()
    assert line.wire.reading


async def test_a_request_given_up_ends_its_connection_and_an_old_reply_reads_nothing_new() -> None:
    line = Line()
    old = line.ask()
    line.hears(LENGTH)
    assert line.connection.release()
    new = line.ask()
    line.hears(LENGTH.replace(b"hello", b"other"))
    assert await whole(new) == b"other world"
    assert await whole(old) == b"hello world"
    assert line.connection.release()
    line.ask()
    assert not line.connection.release()
    assert line.wire.aborted


async def test_a_connection_closed_on_this_side_counts_as_none_until_the_head_came() -> None:
    for heard, failure in ((b"", NotConnected), (LENGTH[:-3], Broken)):
        line = Line()
        reply = line.ask()
        line.hears(*([heard] if heard else []))
        line.connection.close("closed here")
        with pytest.raises(failure, match="closed here"):
            await whole(reply)


async def test_a_reader_that_is_cancelled_leaves_the_answer_to_the_next() -> None:
    line = Line()
    reply = line.ask()
    line.hears(LENGTH[:-11])
    reading = asyncio.ensure_future(reply.read())
    await asyncio.sleep(0)
    reading.cancel()
    line.hears(b"hello world")
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await reply.read() == b"hello world"


async def test_a_large_request_goes_out_whole_too() -> None:
    line = Line()
    line.ask(b"x" * (MOST_AHEAD_BYTES + 1))
    assert line.wire.written == b"head" + b"x" * (MOST_AHEAD_BYTES + 1)


@few
@given(st.lists(st.sampled_from([b"a", b"bc", b"\r\n", b"0\r\n\r\n", b"x" * 300]), max_size=6), st.data())
def test_frames_are_offered_whole_and_what_is_not_taken_comes_as_ever(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    whole_frames = {b"%x\r\n%b\r\n" % (len(part), part): part for part in parts}
    frames = [stream, *(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]
    whole_answer = b"".join(frames)
    if data.draw(st.booleans()):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole_answer)), max_size=6)))
        frames = [whole_answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole_answer)], strict=True)]
    taken_by_turns = data.draw(st.lists(st.booleans(), min_size=1, max_size=3))

    async def talk() -> None:
        line, taken, heard = Line(), list[bytes](), list[bytes]()
        asked = line.ask()

        def take(data: bytes) -> bool:
            while got := asked.reply.take():
                heard.append(got)
            if data not in whole_frames or not taken_by_turns[len(taken) % len(taken_by_turns)]:
                taken.append(b"")
                return False
            taken.append(whole_frames[data])
            heard.append(whole_frames[data])
            return True

        asked.reply.offer_frames(take)
        for frame in frames:
            if frame:
                line.hears(frame)
        while got := asked.reply.take():
            heard.append(got)
        assert b"".join(heard) == b"".join(parts)
        assert asked.reply.state == "complete"
        assert line.connection.release()

    asyncio.run(talk())


async def test_what_comes_within_a_chunk_is_never_offered() -> None:
    line = Line()
    asked = line.ask()
    offered: list[bytes] = []

    def take(data: bytes) -> bool:
        offered.append(data)
        return data == b"1\r\nc\r\n"

    asked.reply.offer_frames(take)
    line.hears(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"f\r\n",
        b"3\r\nabc\r\n3\r\nde\r\n",
        b"\r\n",
    )
    assert asked.reply.take() == b"3\r\nabc\r\n3\r\nde\r\n"
    line.hears(b"1", b"\r\na\r\n")
    line.hears(b"1;x=1\r\nb\r\n")
    assert asked.reply.take() == b"ab"
    assert offered == [b"1", b"1;x=1\r\nb\r\n"]
    line.hears(b"1\r\nc\r\n")
    assert (offered[-1], asked.reply.take()) == (b"1\r\nc\r\n", b"")


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="a setting of Linux")
async def test_the_parts_of_an_answer_that_is_taken_by_frames_are_not_each_acknowledged_at_once() -> None:
    def at_once() -> bool:
        return bool(carrier.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(lambda _: None), *listener.getsockname()
        )
        carrier = transport.get_extra_info("socket")
        carrier.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        reply = Reply()
        connection.send(reply, b"head", b"body")
        assert at_once()
        reply.offer_frames(lambda _: False)
        assert not at_once()
        connection.close("enough")
        reply.offer_frames(lambda _: False)  # of a connection that is gone: nothing to set
