"""Noticing that a client leaves while it is served, whatever server the application runs under."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Receive, Scope

from pdcore.router.polling import while_polled

DEPARTURE: Final = "pdcore.departure"
"""The scope's extension of a server that can tell: a function that takes whom to call, or None for nobody."""


async def while_there(
    scope: Scope, receive: Receive, on_gone: Callable[[], object], work: Awaitable[None]
) -> None:
    """Await ``work``; ``on_gone`` is called as soon as the client is gone, and never when ``work`` has ended.

    The request's body has to be read before. A server that cannot tell is asked all the time, by a task.
    """
    tell: Callable[[Callable[[], object] | None], None] | None = scope.get("extensions", {}).get(DEPARTURE)
    if tell is None:
        return await while_polled(receive, on_gone, work)
    tell(on_gone)
    try:
        await work
    finally:
        tell(None)
