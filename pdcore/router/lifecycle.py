"""From start to the last request: ready, draining, stopping.

``ready`` latches once a complete view has held something that can serve, and ends with the drain. Draining refuses new
requests and lets those in flight finish; ``stopping`` is set when they have had their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdcore.errors import ApiError


class Lifecycle:
    """Mutable state: ``latched``, ``draining``, the number of requests, the two events, and who is told of the stop."""

    def __init__(self, *, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._told: dict[Callable[[], object], None] = {}
        self.stopping = asyncio.Event()
        self.draining = False
        self.latched = False

    @property
    def ready(self) -> bool:
        """New requests should come here."""
        return self.latched and not self.draining

    @property
    def requests(self) -> int:
        """Requests in flight."""
        return self._requests

    def admit(self) -> None:
        """Raise the error of a request that comes too late (503) or is one too many (429)."""
        if self.draining:
            raise ApiError("backend_unavailable", "the router is draining", retry_after_s=1)
        if self._requests > self._max_in_flight:
            raise ApiError("rate_limited", "too many requests in flight", retry_after_s=1)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request inside the block."""
        self._requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    @contextmanager
    def telling(self, call: Callable[[], object]) -> Iterator[None]:
        """Inside the block: ``call`` is called when what is still in flight has had its time."""
        self._told[call] = None
        try:
            yield
        finally:
            del self._told[call]

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests; wait for those in flight, then stop the rest. True if none had to be stopped."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self.stopping.set()
            for call in tuple(self._told):
                call()
            return False
        return True

    async def wait_idle(self, timeout_s: float) -> bool:
        """True once no request is in flight, False if that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
