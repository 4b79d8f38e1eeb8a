"""The one way a test waits: poll a condition until it holds or a deadline passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, TypeVar, overload

T = TypeVar("T")

POLL_S: Final = 0.01


@overload
async def eventually(check: Callable[[], Awaitable[T]], within_s: float, what: str = ...) -> T: ...


@overload
async def eventually(check: Callable[[], T], within_s: float, what: str = ...) -> T: ...


async def eventually(check: Callable[[], object], within_s: float, what: str = "condition") -> object:
    """Return the first truthy result of ``check``; AssertionError when there is none in time."""
    deadline = time.monotonic() + within_s
    while True:
        result = check()
        value = await result if isawaitable(result) else result
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not hold within {within_s} s (last: {value!r})")
        await asyncio.sleep(POLL_S)


def eventually_now(check: Callable[[], T], within_s: float, what: str = "condition") -> T:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + within_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not hold within {within_s} s (last: {value!r})")
        time.sleep(POLL_S)
