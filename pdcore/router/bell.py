"""How a callback wakes the one task that waits for it."""

from __future__ import annotations

import asyncio


class Bell:
    """Rung while nobody waits it is not heard: whoever waits has looked before."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Return when it is rung."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def ring(self) -> None:
        """Wake who waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
