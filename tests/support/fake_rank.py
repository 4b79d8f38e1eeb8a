"""A rank without a model: speaks :mod:`pdcore.engine.messages` to a leader and does what a script says.

In a test's own process: ``async with FakeRank(address) as rank``. As a process, for a leader that spawns its ranks:
``python -m tests.support.fake_rank --spec-fd N``; then the prompt's first letter decides (see :func:`by_first_letter`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec
import zmq
import zmq.asyncio

from pdcore.beside import running_beside
from pdcore.engine.messages import (
    Abort,
    HandedOff,
    Output,
    Ready,
    Start,
    Stats,
    Step,
    Stop,
    ToLeader,
    ToRank,
)
from pdcore.engine.rank_spec import RankSpec
from tests.support.eventually import eventually

Behaviour = Callable[[ToRank], Iterable[ToLeader]]
MessageT = TypeVar("MessageT", Start, Abort, Stop)

READY: Final = Ready(
    dp=0,
    cp=0,
    tp=0,
    pid=1,
    rank_ip="127.0.0.1",
    rank_port=4321,
    transfer={"kind": "fake"},
    device="cpu",
    kv_tokens=4096,
    compat={
        "model_fingerprint": "fake",
        "context_length": 256,
        "kv_dtype": "float32",
        "block_sizes": [16],
        "kv_layout": "block-major",
        "attention": "gqa",
        "layers": 2,
        "kv_heads": 2,
        "head_dim": 8,
        "transfer_engines": ["shm"],
        "wire": 1,
        "layout": 1,
    },
)


def silent(message: ToRank) -> Iterable[ToLeader]:
    """Takes everything, says nothing."""
    return ()


def echo(message: ToRank) -> Iterable[ToLeader]:
    """Generates the prompt again, a token per step, until ``max_tokens``; a prefill leg is handed off at once."""
    if not isinstance(message, Start):
        return
    if message.room and message.prefill is None:
        yield HandedOff(request_id=message.request_id)
        return
    wanted = message.limits.max_tokens
    for place in range(wanted):
        token = message.prompt[place % len(message.prompt)]
        reason = "length" if place == wanted - 1 else None
        yield step(message.request_id, [token], reason)


def by_first_letter(message: ToRank) -> Iterable[ToLeader]:
    """``!``: never answers. ``*``: one token, then nothing. ``x``: exits with status 9. Everything else: echo."""
    first = chr(message.prompt[0]) if isinstance(message, Start) else ""
    if first == "x":
        os._exit(9)
    if first == "*":
        assert isinstance(message, Start)
        return (step(message.request_id, [message.prompt[0]], None),)
    return () if first == "!" else echo(message)


def step(request_id: str, token_ids: Sequence[int], finish_reason: str | None) -> Step:
    """One request's output."""
    return Step(
        outputs=(Output(request_id=request_id, token_ids=tuple(token_ids), finish_reason=finish_reason),)
    )


def stats(**changed: Any) -> Stats:
    """Figures, all zero but those given."""
    return Stats(**{"steps": 0, **changed})


class FakeRank:
    """Connected to a leader while its ``async with`` block lasts; ``received`` holds everything it was sent."""

    def __init__(self, address: str, behaviour: Behaviour = silent, identity: bytes = b"0.0.0") -> None:
        self._address = address
        self._behaviour = behaviour
        self._identity = identity
        self._open = AsyncExitStack()
        self.received: list[ToRank] = []
        self.stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._socket: Any = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IDENTITY, self._identity)
        self._socket.connect(self._address)
        await self._open.enter_async_context(running_beside(self._listen()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)
        self._socket.close(linger=0)
        self._context.term()

    async def say(self, *messages: ToLeader) -> None:
        """Send to the leader."""
        for message in messages:
            await self._socket.send(msgspec.msgpack.encode(message))

    async def say_raw(self, *frames: bytes) -> None:
        """Send anything at all."""
        await self._socket.send_multipart(frames)

    async def wait_for(self, kind: type[MessageT], count: int = 1) -> MessageT:
        """The ``count``-th message of that kind."""

        def found() -> list[MessageT]:
            some = [message for message in self.received if isinstance(message, kind)]
            return some if len(some) >= count else []

        return (await eventually(found, 5, f"{kind.__name__} number {count}"))[count - 1]

    async def _listen(self) -> None:
        decoder = msgspec.msgpack.Decoder(ToRank)
        while True:
            message: ToRank = decoder.decode(await self._socket.recv())
            self.received.append(message)
            await self.say(*self._behaviour(message))
            if isinstance(message, Stop):
                self.stopped.set()


async def run(spec: RankSpec) -> None:
    """Be the rank of ``spec`` until told to stop."""
    async with FakeRank(spec.dispatch, by_first_letter, spec.identity) as rank:
        place = {"dp": spec.dp, "cp": spec.cp, "tp": spec.tp}
        await rank.say(msgspec.structs.replace(READY, pid=os.getpid(), **place))
        await rank.say(stats(kv_blocks_total=256))
        while not rank.stopped.is_set():
            if spec.beat_fd is not None:
                os.write(spec.beat_fd, b"\0")
            try:
                async with asyncio.timeout(0.2):
                    await rank.stopped.wait()
            except TimeoutError:
                continue


def main() -> None:
    """The process: reads its spec as a rank does. A model directory named ``broken`` is refused, ``dead`` crashes."""
    with open(int(sys.argv[sys.argv.index("--spec-fd") + 1]), "rb") as pipe:
        spec = msgspec.msgpack.decode(pipe.read(), type=RankSpec)
    name = os.path.basename(spec.model)
    if name == "broken":
        print("the model is broken", file=sys.stderr)
        sys.exit(2)
    if name == "dead":
        sys.exit(1)
    asyncio.run(run(spec))


if __name__ == "__main__":
    main()
