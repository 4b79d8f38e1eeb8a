"""The way to an engine: the seam every leg goes through.

A transport posts one leg and hands over the answer's head and its body as it comes. It knows nothing of legs, retries
or budgets except the time a connection may take. Its own exceptions end there; two kinds come out. It ignores proxy
variables and ``.netrc``, follows no redirect and asks for no encoding. Whatever does so passes
``tests/router/test_upstream.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, Self

from msgspec import Struct

from pdcore.errors import PdcoreError

KEEPALIVE_S: Final = (
    3.0  # shorter than any engine's, so that a pooled connection is never closed under a request
)


class NotConnected(PdcoreError):
    """No connection came about; nothing was sent. ``timed_out``: the connect budget is used up."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Broken(PdcoreError):
    """The connection ended before the answer did, or what came is not HTTP."""


class Post(Struct, frozen=True, kw_only=True):
    """One POST with a JSON body."""

    url: str
    headers: Mapping[str, str]
    body: bytes


class Answer(Protocol):
    """An engine's answer whose head has arrived. Header names are lower-case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The next part of the body as it comes, content encoding undone; b"" at its end. Raises :class:`Broken`.

        Little is read ahead of the caller: one part as the socket gives it, 64 KiB and the socket's own buffers.
        """
        ...


class Upstream(Protocol):
    """A transport with its connections; ``async with`` opens and closes it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    def post(self, post: Post) -> AbstractAsyncContextManager[Answer]:
        """Send ``post``; entering waits for the head, leaving gives the connection back or closes it.

        Entering raises :class:`NotConnected` (also for a URL that leads nowhere) or :class:`Broken`, and may be
        cancelled at any moment; so may every read. Nothing of an answer that was left early is ever read again.
        """
        ...
