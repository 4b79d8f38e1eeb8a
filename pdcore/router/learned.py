"""What engines told this router about themselves, asked once per incarnation.

Mutable state: ``_known``, at most one answer per instance id, always of the incarnation that was asked for last; and
``_asking``, a lock per instance that is being asked, so that a burst of requests asks once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Final, Self

import httpx

from pdcore.router.exchange import Failure
from pdcore.router.leg_failure import LegFailure
from pdcore.router.protocols.base import Question
from pdcore.router.protocols.unreadable import Unreadable

MAX_ANSWER_BYTES: Final = 1 << 20


class Learned:
    """Asks and remembers; ``async with`` opens the client and closes it."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._known: dict[str, tuple[str, object]] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._stack = AsyncExitStack()
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        # The deadline of an answer is set where it is waited for.
        client = httpx.AsyncClient(timeout=None, trust_env=False, follow_redirects=False, verify=False)
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._client = None
        await self._stack.aclose()

    def __len__(self) -> int:
        return len(self._known)

    async def answer(self, question: Question) -> object:
        """What the instance says, or said. Raises LegFailure of prefill, by which nothing was executed."""
        instance_id, incarnation = question.key
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._asking.setdefault(instance_id, asyncio.Lock()):
                    held = self._known.get(instance_id)
                    if held is None or held[0] != incarnation:
                        held = self._known[instance_id] = (incarnation, await self._ask(question))
        except TimeoutError as wrong:
            raise _failure(
                "connect_expired", f"{question.url} did not answer in {self._timeout_s:g} s"
            ) from wrong
        return held[1]

    def doubt(self, instance_id: str) -> None:
        """Ask again next time: a request failed there, and an engine may be another one behind the same name."""
        self._known.pop(instance_id, None)

    def forget(self, known: Collection[str]) -> None:
        """Drop what was learned of instances that are not ``known`` any more."""
        self._known = {name: held for name, held in self._known.items() if name in known}
        self._asking = {name: lock for name, lock in self._asking.items() if name in known or lock.locked()}

    async def _ask(self, question: Question) -> object:
        try:
            document = await self._get(question.url)
            return question.read(document)
        except httpx.ConnectError as wrong:
            raise _failure("unreachable", f"{question.url}: {wrong}") from wrong
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as wrong:
            raise _failure("not_now", f"{question.url}: {wrong or type(wrong).__name__}") from wrong
        except Unreadable as wrong:
            raise _failure("not_now", f"{question.url}: {wrong}") from wrong

    async def _get(self, url: str) -> bytes:
        assert self._client is not None, "used outside its async with"
        body = bytearray()
        async with self._client.stream("GET", url) as response:
            if response.status_code != httpx.codes.OK:
                raise Unreadable(f"answered {response.status_code}")
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    raise Unreadable(f"answered more than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


def _failure(event: Failure, message: str) -> LegFailure:
    return LegFailure("prefill", event, message)
