"""A call to an engine as a test reads it: one part after the other, waiting for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pdcore.router.upstream import Call, Post, Upstream


class Reading:
    """What has come of an answer whose head is there. ``changed`` is to be set whenever more has come."""

    def __init__(self, changed: asyncio.Event) -> None:
        self.changed = changed
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
            await self._change()

    async def read(self) -> bytes:
        """The next part, b"" at the end; raises what went wrong."""
        assert self.call is not None
        while True:
            part = self.call.take()
            if part or self.call.state == "complete":
                return part
            if self.call.state == "failed":
                raise self.call.failure()
            await self._change()

    async def _change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


@asynccontextmanager
async def posted(upstream: Upstream, post: Post) -> AsyncIterator[Reading]:
    """Send ``post`` and wait for the head; the call is closed in every ending."""
    changed = asyncio.Event()
    reading = Reading(changed)
    reading.call = call = upstream.post(post, changed.set)
    try:
        await reading.head()
        yield reading
    finally:
        call.close()
