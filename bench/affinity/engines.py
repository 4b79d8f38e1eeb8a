"""A fleet of fake engines on real sockets, in one process: prefills that model a KV cache, and one decode.

``python -m bench.affinity.engines SPEED PREFILLS PORT`` prints the ports of all, from ``PORT`` on, the decode's last. A
prefill answers when what it does not find in its cache is computed, after what came before it; queue, cache and costs are
the simulation's. Their clock is the workload's: a request says when it was sent, so that what the machine does besides
costs no time there. For how long it takes by that clock, it waits for its answer, ``SPEED`` times as fast. A decode
answers once the prefill of its room is done. A prefill without a room answers as any engine.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Protocol, cast

import httptools
import msgspec
import uvloop

from bench.affinity.chats import DECODER, Chat, blocks, tokenized
from bench.affinity.simulation import Cache

MODEL: Final = "tiny"
CHAT: Final = b"/v1/chat/completions"
TOKENIZE: Final = b"/tokenize"
COUNTS: Final = b"/fleet/counts"
BEGIN: Final = b"/fleet/begin"
_CHOICE: Final = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
_COMPLETION: Final = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
_USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_ANSWER: Final = {**_COMPLETION, "choices": [_CHOICE], "usage": _USAGE}
_ABOUT: Final = {"model_path": MODEL, "served_model_name": MODEL, "tokenizer_path": MODEL, "dp_size": 1}
COMPLETION: Final = json.dumps(_ANSWER).encode()
_ASKED: Final = (
    *(b"/health", b"/health_generate", b"/model_info", b"/get_model_info"),
    *(b"/server_info", b"/get_server_info"),
)
PAGES: Final = {
    **dict.fromkeys(_ASKED, json.dumps(_ABOUT).encode()),
    b"/v1/models": json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode(),
    b"/get_load": b'[{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]',
    b"/v1/loads": b'{"timestamp": "", "dp_rank_count": 1, "loads": []}',
}
"""What routers ask an engine about itself."""

Answer = Callable[[bytes], None]


class Engine(Protocol):
    """Answers a chat, now or later."""

    def take(self, chat: Chat, answer: Answer) -> None: ...


class Rooms:
    """Mutable: the rooms whose prefill is done before their decode was asked, and those whose decode waits."""

    def __init__(self) -> None:
        self._done: set[int] = set()
        self._waiting: dict[int, Answer] = {}

    def hand_over(self, room: int) -> None:
        """Prefill is done."""
        waiting = self._waiting.pop(room, None)
        if waiting is None:
            self._done.add(room)
        else:
            waiting(COMPLETION)

    def join(self, room: int, answer: Answer) -> None:
        """Decode answers as soon as prefill is done."""
        if room in self._done:
            self._done.remove(room)
            answer(COMPLETION)
        else:
            self._waiting[room] = answer

    def clear(self) -> None:
        """Forget those that ended otherwise."""
        self._done.clear()
        self._waiting.clear()


class Prefill:
    """One instance: first come, first served. Mutable: its cache and queue, and how long each request took."""

    def __init__(self, rooms: Rooms, speed: float) -> None:
        self.cache = Cache()
        self.took_s: list[float] = []
        self._rooms = rooms
        self._speed = speed

    def take(self, chat: Chat, answer: Answer) -> None:
        at = chat.seed / 1e6
        took_s = self.cache.serve(at, blocks(chat.messages)) - at
        self.took_s.append(took_s)
        asyncio.get_running_loop().call_later(took_s / self._speed, self._end, chat.bootstrap_room, answer)

    def _end(self, room: int | None, answer: Answer) -> None:
        if room is not None:
            self._rooms.hand_over(room)
        answer(COMPLETION)


class Decode:
    """Answers once its room has the KV; at once without a room."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def take(self, chat: Chat, answer: Answer) -> None:
        if chat.bootstrap_room is None:
            answer(COMPLETION)
        else:
            self._rooms.join(chat.bootstrap_room, answer)


class Fleet:
    """The engines of one process, and what whoever measures asks of them all."""

    def __init__(self, prefills: int, speed: float) -> None:
        self._rooms = Rooms()
        self.prefills = [Prefill(self._rooms, speed) for _ in range(prefills)]
        self.decode = Decode(self._rooms)
        self.connections: set[Connection] = set()

    async def leave(self) -> None:
        """Close every connection."""
        for one in self.connections:
            one.close()
        await asyncio.sleep(0)

    def page(self, path: bytes) -> bytes | None:
        """What ``path`` shows; None where nothing is."""
        if path == COUNTS:
            return json.dumps([_counted(one) for one in self.prefills]).encode()
        if path == BEGIN:
            self._begin()
            return b"{}"
        return PAGES.get(path)

    def _begin(self) -> None:
        """Empty caches, and nothing counted."""
        self._rooms.clear()
        for one in self.prefills:
            one.cache, one.took_s = Cache(), []


def _counted(one: Prefill) -> dict[str, object]:
    cache = one.cache
    return {"served": cache.served, "found": cache.found, "asked": cache.asked, "took_s": one.took_s}


class Connection(asyncio.Protocol):
    """Requests one after another, each answered before the next is sent."""

    def __init__(self, fleet: Fleet, engine: Engine) -> None:
        self._fleet = fleet
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self._fleet.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._fleet.connections.discard(self)

    def close(self) -> None:
        """Whatever is still to be answered."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.DecodeError):
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._path.partition(b"?")[0]
        body = b"".join(self._body)
        self._path, self._body = b"", []
        if path == CHAT:
            self._engine.take(DECODER.decode(body), self._answer)
            return
        if path == TOKENIZE:
            self._answer(tokenized(DECODER.decode(body).messages))
            return
        page = self._fleet.page(path)
        self._answer(b"{}" if page is None else page, b"200 OK" if page is not None else b"404 Not Found")

    def _answer(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        if not self._transport.is_closing():
            self._transport.write(head % (status, len(body)) + body)


def listeners(count: int, first: int = 0) -> list[socket.socket]:
    """Bound to the first free ports of the loopback from ``first`` on; to any with 0."""
    made: list[socket.socket] = []
    while len(made) < count:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", first))
        except OSError:
            one.close()
        else:
            made.append(one)
        first += bool(first)
    return made


async def serve(speed: float, bound: Sequence[socket.socket]) -> None:
    """For ever: engines at sockets that are ``bound``, the last of which is the decode's."""
    fleet = Fleet(len(bound) - 1, speed)
    engines: list[Engine] = [*fleet.prefills, fleet.decode]
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.leave)
        for listener, engine in zip(bound, engines, strict=True):
            connection = partial(Connection, fleet, engine)
            await stack.enter_async_context(await loop.create_server(connection, sock=listener, backlog=1024))
        await asyncio.Event().wait()


def main() -> None:
    """Until the process is ended."""
    speed, prefills, first = sys.argv[1:]
    bound = listeners(int(prefills) + 1, int(first))
    print(json.dumps([one.getsockname()[1] for one in bound]), flush=True)
    uvloop.run(serve(float(speed), bound))


if __name__ == "__main__":
    main()
