"""The way to an engine: the seam every leg goes through.

A transport posts one leg and says whenever more of the answer has come; whoever asked looks at it then. It knows nothing
of legs, retries or budgets except the time a connection may take. Its own exceptions end there; two kinds come out. It
ignores proxy variables and ``.netrc``, follows no redirect and asks for no encoding. Whatever does so passes
``tests/router/test_upstream.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol, Self

from msgspec import Struct

from pdcore.errors import PdcoreError

KEEPALIVE_S: Final = (
    3.0  # shorter than any engine's, so that a pooled connection is never closed under a request
)

State = Literal["head", "body", "complete", "failed"]
"""What is waited for: the answer's head, more of its body, or nothing any more."""


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


Frames = Callable[[bytes], bool]


class Call(Protocol):
    """A POST on its way, and what has come of its answer."""

    @property
    def state(self) -> State: ...

    @property
    def status(self) -> int:
        """0 until the head has come."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case names."""
        ...

    def take(self) -> bytes:
        """What has come of the body and was not taken yet, content encoding undone; b"" for nothing new.

        To be asked until it says so before ``state`` means anything. Little is read ahead of the taker: one part as the
        socket gives it, 64 KiB and the socket's own buffers. Raises :class:`Broken`.
        """
        ...

    def offer_frames(self, take: Frames) -> None:
        """Offer ``take`` what comes between two chunks of a body, as it came, before anything else sees it.

        ``take`` says whether it has dealt with it, and may do so with exactly one whole frame; if not, it comes like
        everything else. A transport need not ever offer anything.
        """
        ...

    def failure(self) -> NotConnected | Broken:
        """Why it has failed: :class:`NotConnected` also for a URL that leads nowhere."""
        ...

    def close(self) -> None:
        """Done with it, at any moment and however often: the connection is given back, or closed if there is more to
        come. Nothing is told any more, and nothing of an answer that was left early is ever read again."""
        ...


class Upstream(Protocol):
    """A transport with its connections; ``async with`` opens and closes it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    def post(self, post: Post, on_change: Callable[[], None]) -> Call:
        """Send ``post``. ``on_change`` is called whenever there is something to look at, never from within this call."""
        ...
