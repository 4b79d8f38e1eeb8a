"""The relay alone: our server and our transport around nothing. Both legs go out, decode's bytes come back.

No choice, no budget, no check, no counter, no log: what is left is what the features of a router stand on.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from functools import partial
from typing import Final

import msgspec
import uvloop
from starlette.types import Receive, Scope, Send

from bench.router.targets import BOOTSTRAP_PORT
from pdcore.http_server import answering, listen
from pdcore.router.chance import fresh_room
from pdcore.router.departure import DEPARTURE
from pdcore.router.interrupt import Interrupt
from pdcore.router.upstream import Post, Upstream
from pdcore.router.wire_server import ServerConnection
from pdcore.router.wire_upstream import WireUpstream
from tests.support.asking import Reading, asked

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream")


class Relay:
    """The whole application."""

    def __init__(self, upstream: Upstream, prefill: str, decode: str) -> None:
        self._upstream = upstream
        self._prefill = prefill
        self._decode = decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = _FIELDS.decode((await receive())["body"])
        body = _ENCODER.encode({**fields, **_joined()})
        path: str = scope["path"]
        decode = asked(self._upstream, Post(url=self._decode + path, headers={}, body=body))
        prefill = asked(self._upstream, Post(url=self._prefill + path, headers={}, body=body))
        try:
            with Interrupt[bool]() as left:
                scope["extensions"][DEPARTURE](partial(left.strike, True))
                await _pass_on(decode, send)
                while await prefill.read():
                    pass
        finally:
            for one in (decode, prefill):
                if one.call is not None:
                    one.call.close()


async def _pass_on(answer: Reading, send: Send) -> None:
    part = await answer.read()
    if answer.headers["content-type"].startswith("text/event-stream"):
        await send(_start(answer.status, _EVENTS))
        while part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            part = await answer.read()
    else:
        while more := await answer.read():
            part += more
        await send(_start(answer.status, _JSON, (b"content-length", str(len(part)).encode())))
    await send({"type": "http.response.body", "body": part})


def _joined() -> dict[str, object]:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": BOOTSTRAP_PORT, "bootstrap_room": fresh_room()}


def _start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def main(port: int, prefill: str, decode: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with WireUpstream(connect_timeout_s=2) as upstream:
        listener = listen("127.0.0.1", port, "port")
        async with answering(Relay(upstream, prefill, decode), listener, protocol=ServerConnection):
            print(json.dumps({"listens": port}), flush=True)
            await stop.wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), *sys.argv[2:4]))
