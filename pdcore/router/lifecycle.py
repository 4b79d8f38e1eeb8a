"""From start to the last request: ready, draining, stopping.

``ready`` latches once a complete view has held something that can serve, and ends with the drain. Draining refuses new
requests and lets those in flight finish; ``stopping`` is set when they have had their time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from pdcore.errors import ApiError
from pdcore.router.bell import Bell
from pdcore.router.within import within


class Lifecycle:
    """Mutable state: ``latched``, ``draining``, ``stopping``, the number of requests, and who is told of the stop."""

    def __init__(self, *, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self._requests = 0
        self._counted = _Counted(self)
        self._idle = Bell()
        self._told: dict[Callable[[], object], None] = {}
        self.stopping = False
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

    def request(self) -> AbstractContextManager[None]:
        """Count one request inside the block."""
        return self._counted

    def tell(self, call: Callable[[], object]) -> None:
        """``call`` is to be called when what is still in flight has had its time."""
        self._told[call] = None

    def forget(self, call: Callable[[], object]) -> None:
        """Not any more."""
        del self._told[call]

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests; wait for those in flight, then stop the rest. True if none had to be stopped."""
        self.draining = True
        try:
            await within(timeout_s, self._until_idle())
        except TimeoutError:
            self.stopping = True
            for call in tuple(self._told):
                call()
            return False
        return True

    async def wait_idle(self, timeout_s: float) -> bool:
        """True once no request is in flight, False if that takes longer."""
        try:
            await within(timeout_s, self._until_idle())
        except TimeoutError:
            return False
        return True

    async def _until_idle(self) -> None:
        while self._requests:
            await self._idle.wait()

    def _begin(self) -> None:
        self._requests += 1

    def _end(self) -> None:
        self._requests -= 1
        if not self._requests:
            self._idle.ring()


class _Counted:
    """One block per request, all over the same two numbers."""

    __slots__ = ("_lifecycle",)

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def __enter__(self) -> None:
        self._lifecycle._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lifecycle._end()
