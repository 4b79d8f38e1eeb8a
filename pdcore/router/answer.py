"""Our side of the answer: what has been sent to the client, and sending more of it exactly once.

Knows nothing of legs. Every send has a deadline, so that a client that stops reading ends its own request only; the
server's own write buffer (64 KiB) and one event are all that waits for a slow reader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import msgspec
from starlette.types import Send

from pdcore.errors import ApiError
from pdcore.router.headers import as_raw, new_request_id
from pdcore.router.lazy_timer import LazyTimer
from pdcore.router.leg_failure import RawAnswer
from pdcore.router.pace import Pace
from pdcore.router.relay import error_event

OUTLET: Final = "pdcore.outlet"
"""The scope's extension of a server that can take parts of a body at once: an :class:`Outlet`."""


class Outlet(Protocol):
    """A response's way out, past the task that answers."""

    takes_frames: bool
    """Whether a chunked frame can go out now, as it is: the head is out and asks for them, and nothing is in the way."""

    def write_frame(self, frame: bytes) -> None:
        """Write a whole frame while ``takes_frames``."""
        ...

    def push(self, part: bytes) -> bool:
        """Write a further part of the body; False, and nothing is written, if that would have to wait."""
        ...


class NoOutlet:
    """Of a server that has none."""

    takes_frames = False

    def write_frame(self, frame: bytes) -> None:
        raise AssertionError("takes no frames")

    def push(self, part: bytes) -> bool:
        return False


def _nothing() -> None:
    return


_NO_OUTLET: Final = NoOutlet()


class ClientAnswer:
    """One response. ``started``: the head is sent; ``ended``: nothing more may follow. ``status`` once started.

    ``patience`` watches over every send: it calls ``on_slow`` when the client takes nothing for the whole write budget,
    and is to be cancelled in the end. ``pace`` says when a stream's events went out. ``on_start`` is called when the
    head goes out, ``before_end`` awaited before the last part does: what the client must find undone when it has its
    answer.
    """

    def __init__(
        self,
        send: Send,
        *,
        now: Callable[[], float],
        on_slow: Callable[[], object],
        write_timeout_s: float,
        outlet: Outlet | None = None,
        on_start: Callable[[], None] = _nothing,
    ) -> None:
        self._send = send
        self._on_start = on_start
        self._now = now
        self._write_timeout_s = write_timeout_s
        self.outlet = outlet or _NO_OUTLET
        self.patience = LazyTimer(on_slow, now)
        self._request_id: str | None = None
        self.status: int | None = None
        self.ended = False
        self.pace = Pace()
        self.before_end: Callable[[], Awaitable[None]] | None = None

    @property
    def request_id(self) -> str:
        """The request's name; one of ours where the client's was not read, or cannot be used."""
        if self._request_id is None:
            self._request_id = new_request_id()
        return self._request_id

    @request_id.setter
    def request_id(self, name: str) -> None:
        self._request_id = name

    def hurry(self, on_slow: Callable[[], object]) -> None:
        """From now on another ``on_slow`` is called."""
        self.patience.cancel()
        self.patience = LazyTimer(on_slow, self._now)

    @property
    def started(self) -> bool:
        return self.status is not None

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head."""
        await self._put(self._head(status, headers))

    async def push(self, part: bytes) -> None:
        """Send a part of the body; more follows."""
        await self._put({"type": "http.response.body", "body": part, "more_body": True})

    async def finish(self, part: bytes = b"") -> None:
        """Send the last part."""
        if self.before_end is not None:
            await self.before_end()
        self.ended = True
        await self._put({"type": "http.response.body", "body": part, "more_body": False})

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """A complete response in one go."""
        await self._put(self._head(status, headers, (b"content-length", b"%d" % len(body))))
        await self.finish(body)

    async def json(
        self, document: object, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """A complete JSON response."""
        named = {"content-type": "application/json", **(headers or {})}
        await self.whole(status, msgspec.json.encode(document), named)

    async def fail(self, error: ApiError, raw: RawAnswer | None = None) -> None:
        """End with ``error``: its status while the head is unsent (or the engine's own answer), one event after."""
        if self.ended:
            return
        if self.started:
            await self.finish(error_event(error, self.request_id))
        elif raw is not None:
            await self.whole(raw.status, raw.body, {"content-type": raw.content_type, **error.headers()})
        else:
            await self.json(error.body(self.request_id), status=error.status, headers=error.headers())

    def _head(self, status: int, headers: Mapping[str, str], *own: tuple[bytes, bytes]) -> dict[str, object]:
        self.status = status
        self._on_start()
        named = [(b"x-request-id", self.request_id.encode()), *as_raw(headers), *own]
        return {"type": "http.response.start", "status": status, "headers": named}

    async def _put(self, message: dict[str, object]) -> None:
        self.patience.set(self._now() + self._write_timeout_s)
        await self._send(message)
        self.patience.set(None)
