"""A call to an engine as a test reads it: one part after the other, waiting for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pdcore.router.bell import Bell
from pdcore.router.upstream import Call, Post, Upstream


class Reading:
    """What has come of an answer. ``bell`` is to be rung whenever more has come."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.call: Call | None = None

    @property
    def status(self) -> int:
        assert self.call is not None
        return self.call.status

    @property
    def headers(self) -> Mapping[str, str]:
        assert self.call is not None
        return self.call.headers

    async def head(self) -> None:
        """Wait for the head; raises what went wrong instead."""
        assert self.call is not None
        while not self.call.status:
            if self.call.state == "failed":
                raise self.call.failure()
            await self.bell.wait()

    async def read(self) -> bytes:
        """The next part, b"" at the end; raises what went wrong."""
        assert self.call is not None
        while True:
            part = self.call.take()
            if part or self.call.state == "complete":
                return part
            if self.call.state == "failed":
                raise self.call.failure()
            await self.bell.wait()


def asked(upstream: Upstream, post: Post) -> Reading:
    """Send ``post``; closing its call is the caller's."""
    reading = Reading()
    reading.call = upstream.post(post, reading.bell.ring)
    return reading


@asynccontextmanager
async def posted(upstream: Upstream, post: Post) -> AsyncIterator[Reading]:
    """Send ``post`` and wait for the head; the call is closed in every ending."""
    reading = asked(upstream, post)
    assert reading.call is not None
    try:
        await reading.head()
        yield reading
    finally:
        reading.call.close()
