"""Callers that wait for values to arrive under keys, many for one key, one for many keys."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pdcore.errors import StoreRefused

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


@dataclass(slots=True, eq=False)
class _Call(Generic[KeyT, ValueT]):
    missing: set[KeyT]
    found: dict[KeyT, ValueT] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Awaited(Generic[KeyT, ValueT]):
    """At most ``most`` keys are waited for at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: dict[KeyT, list[_Call[KeyT, ValueT]]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def keys(self) -> tuple[KeyT, ...]:
        """What somebody waits for."""
        return tuple(self._calls)

    async def wait(self, keys: Iterable[KeyT], timeout_s: float) -> dict[KeyT, ValueT]:
        """What arrives under ``keys``; returns when everything has, or after ``timeout_s``. Raises StoreRefused."""
        call = _Call[KeyT, ValueT](set(keys))
        if len(self._calls) + len(call.missing) > self._most:
            raise StoreRefused(f"more than {self._most} rooms are waited for")
        for key in call.missing:
            self._calls.setdefault(key, []).append(call)
        try:
            async with asyncio.timeout(timeout_s):
                await call.done.wait()
        except TimeoutError:
            pass  # what has not arrived is what is missing
        finally:
            for key in call.missing:
                self._leave(key, call)
        return call.found

    def arrived(self, key: KeyT, value: ValueT) -> None:
        """Tell everybody who waits for ``key``."""
        for call in self._calls.pop(key, ()):
            call.missing.discard(key)
            call.found[key] = value
            if not call.missing:
                call.done.set()

    def _leave(self, key: KeyT, call: _Call[KeyT, ValueT]) -> None:
        waiting = self._calls[key]
        waiting.remove(call)
        if not waiting:
            del self._calls[key]
