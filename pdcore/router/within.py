"""A bound on the time of one await, for modules that are compiled and so have no ``async with``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(timeout_s: float, work: Awaitable[T]) -> T:
    """What ``work`` gives; raises TimeoutError, and ends ``work``, when that takes longer."""
    async with asyncio.timeout(timeout_s):
        return await work
