"""The way to an engine: the seam every leg goes through, and the reference transport on httpx.

A transport posts one leg and hands over the answer's head and its body as it comes. It knows nothing of legs, retries
or budgets except the time a connection may take. Its own exceptions end here; two kinds come out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, Self

import httpx

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
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

        Nothing is read ahead of the caller beyond one part and the socket's own buffers.
        """
        ...


class Upstream(Protocol):
    """A transport with its connections; ``async with`` opens and closes it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    def post(self, post: Post) -> AbstractAsyncContextManager[Answer]:
        """Send ``post``; entering waits for the head, leaving gives the connection back or closes it.

        Entering raises :class:`NotConnected` or :class:`Broken`.
        """
        ...


class HttpxUpstream:
    """The reference transport. Ignores proxy variables and ``.netrc``, follows no redirect, asks for no encoding."""

    def __init__(self, *, connect_timeout_s: float, write_timeout_s: float) -> None:
        self._timeout = httpx.Timeout(None, connect=connect_timeout_s, write=write_timeout_s)
        self._stack = AsyncExitStack()
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=256, keepalive_expiry=KEEPALIVE_S
        )
        client = httpx.AsyncClient(
            timeout=self._timeout, limits=limits, trust_env=False, follow_redirects=False, verify=False
        )
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._client = None
        await self._stack.aclose()

    @asynccontextmanager
    async def post(self, post: Post) -> AsyncIterator[Answer]:
        assert self._client is not None, "used outside its async with"
        headers = {"accept-encoding": "identity", "content-type": "application/json", **post.headers}
        request = self._client.build_request("POST", post.url, headers=headers, content=post.body)
        with _translated():
            response = await self._client.send(request, stream=True)
        parts = response.aiter_bytes()
        try:
            yield _HttpxAnswer(response, parts)
        finally:
            await response.aclose()


class _HttpxAnswer:
    def __init__(self, response: httpx.Response, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def read(self) -> bytes:
        with _translated():
            async for part in self._parts:
                if part:
                    return part
            return b""


_WHAT: Final[tuple[tuple[type[Exception], str], ...]] = (
    (httpx.ReadError, "the connection was reset"),
    (httpx.WriteError, "the connection was reset while the request was sent"),
    (httpx.RemoteProtocolError, "the answer ended early or is not HTTP"),
    (httpx.DecodingError, "the answer's content encoding is broken"),
)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.ConnectTimeout as wrong:
        raise NotConnected("no connection within the connect budget", timed_out=True) from wrong
    except httpx.ConnectError as wrong:
        raise NotConnected(f"connection refused: {wrong}", timed_out=False) from wrong
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as wrong:
        what = next((text for kind, text in _WHAT if isinstance(wrong, kind)), type(wrong).__name__)
        raise Broken(f"{what}: {wrong}") from wrong
