"""What ranks say about the items of one request, until its reader takes it.

What is not taken yet is merged, so that a :class:`Reply` holds at most one list of tokens, however slow its reader is.
Everything here is for one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdcore.engine.messages import Output, Start
from pdcore.engine.transfer.orders import TokenLogprobs
from pdcore.errors import ApiError, ErrorCode
from pdcore.topology.keys import RankPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What has come since the last look: tokens in order, and how the request ended if it did.

    ``cached_tokens`` of the prompt had their KV before; it is said with the first token.
    """

    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    handed_off: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0


class Reply:
    """One item's answers. One reader, who calls :meth:`next` or :meth:`take`, and :meth:`leave`.

    ``news`` is set whenever there is something to take; the replies of one request share it.
    """

    def __init__(
        self,
        start: Start,
        rank: RankPosition,
        abort: Callable[[], None],
        news: asyncio.Event | None = None,
    ) -> None:
        self.start = start
        self.rank = rank
        self._abort = abort
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._cached_tokens = 0
        self._finish_reason: str | None = None
        self._handed_off = False
        self._left = False
        self._error: ApiError | None = None
        self._fresh = False
        self._news = asyncio.Event() if news is None else news

    @property
    def ended(self) -> bool:
        """Whether the rank is done with this request."""
        return self._finish_reason is not None or self._handed_off or self._error is not None

    async def next(self) -> Delivery:
        """Wait for something new and take it. Raises the rank's error once its tokens are taken."""
        while True:
            await self._news.wait()
            self._news.clear()
            delivery = self.take()
            if delivery is not None:
                return delivery

    def take(self) -> Delivery | None:
        """What is new, None when nothing is. Raises the rank's error once its tokens are taken."""
        if not self._fresh:
            return None
        if self._error is not None and not self._token_ids:
            raise self._error
        delivery = Delivery(
            token_ids=tuple(self._token_ids),
            finish_reason=self._finish_reason,
            handed_off=self._handed_off,
            logprobs=tuple(self._logprobs),
            cached_tokens=self._cached_tokens,
        )
        self._token_ids, self._logprobs, self._cached_tokens = [], [], 0
        self._fresh = False
        if self._error is not None:
            self._tell()
        return delivery

    def leave(self) -> None:
        """The reader has all it wants: a rank that still works on it is told, once."""
        if not self.ended and not self._left:
            self._left = True
            self._abort()

    def add(self, output: Output) -> None:
        """Merge an output into what is not taken yet."""
        self._token_ids += output.token_ids
        self._logprobs += output.logprobs
        self._cached_tokens += output.cached_tokens
        self._finish_reason = output.finish_reason
        self._tell()

    def mark_handed_off(self) -> None:
        """The prefill half is complete."""
        self._handed_off = True
        self._tell()

    def fail(self, code: ErrorCode, message: str) -> None:
        """End with an error, unless the request has ended already."""
        if not self.ended:
            self._error = ApiError(code, message)
            self._tell()

    def _tell(self) -> None:
        if self._left:
            return
        self._fresh = True
        self._news.set()


class Replies:
    """The replies of one request's items, for one reader. They share ``news``."""

    def __init__(self, replies: Sequence[Reply], news: asyncio.Event) -> None:
        self._replies = replies
        self._news = news

    async def next(self) -> list[tuple[int, Delivery]]:
        """Wait until something is new, and take all that is: by place, in order. Raises the first rank's error."""
        while True:
            await self._news.wait()
            self._news.clear()
            found = [
                (place, one) for place, reply in enumerate(self._replies) if (one := reply.take()) is not None
            ]
            if found:
                return found

    def leave(self, place: int) -> None:
        """All that is wanted of that one has come."""
        self._replies[place].leave()

    @property
    def ranks(self) -> Sequence[RankPosition]:
        """Who has each of them."""
        return [reply.rank for reply in self._replies]
