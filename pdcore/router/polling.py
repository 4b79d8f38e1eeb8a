"""Noticing that a client leaves by asking for it all the time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive

from pdcore.beside import running_beside


async def while_polled(receive: Receive, on_gone: Callable[[], object], work: Awaitable[None]) -> None:
    """Await ``work``; a task beside it waits for ``receive`` to say that the client is gone, and calls ``on_gone``."""
    async with running_beside(_poll(receive, on_gone)):
        await work


async def _poll(receive: Receive, on_gone: Callable[[], object]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    on_gone()
