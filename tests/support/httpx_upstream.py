"""The reference transport, on httpx: slow, and somebody else's. What it does, the router's own has to do as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final, Self, TypeVar

import anyio
import httpx

from pdcore.router.upstream import KEEPALIVE_S, Broken, Frames, NotConnected, Post, State

ResultT = TypeVar("ResultT")


class HttpxUpstream:
    """Implements :class:`pdcore.router.upstream.Upstream`."""

    def __init__(self, *, connect_timeout_s: float, write_timeout_s: float) -> None:
        self._timeout = httpx.Timeout(None, connect=connect_timeout_s, write=write_timeout_s)
        self._stack = AsyncExitStack()
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        # A pool over its number of idle connections closes some that it has just given to a request.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S
        )
        client = httpx.AsyncClient(
            timeout=self._timeout, limits=limits, trust_env=False, follow_redirects=False, verify=False
        )
        self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._client = None
        await self._stack.aclose()

    def post(self, post: Post, on_change: Callable[[], None]) -> HttpxCall:
        assert self._client is not None, "used outside its async with"
        call = HttpxCall(on_change)
        call.task = self._group.create_task(self._run(post, call))
        return call

    async def _run(self, post: Post, call: HttpxCall) -> None:
        """Hand over the answer part by part, and no further part before the last one was taken."""
        try:
            async with self._posted(post) as (response, parts):
                call.begin(response)
                while part := await _cancelled_once(_next_part(parts)):
                    await call.offer(part)
            call.complete()
        except (NotConnected, Broken) as wrong:
            call.fail(wrong)

    @asynccontextmanager
    async def _posted(self, post: Post) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
        assert self._client is not None, "used outside its async with"
        headers = {"accept-encoding": "identity", "content-type": "application/json", **post.headers}
        try:
            request = self._client.build_request("POST", post.url, headers=headers, content=post.body)
        except httpx.InvalidURL as wrong:
            raise NotConnected(f"no URL of an engine: {wrong}", timed_out=False) from wrong
        responses: list[httpx.Response] = []
        try:
            await _cancelled_once(self._send(self._client, request, responses))
            yield responses[0], responses[0].aiter_bytes()
        finally:
            for response in responses:
                await _to_its_end(response.aclose())

    async def _send(
        self, client: httpx.AsyncClient, request: httpx.Request, responses: list[httpx.Response]
    ) -> None:
        try:
            responses.append(await client.send(request, stream=True))
        except (httpx.ReadError, httpx.WriteError) as wrong:
            if _closed_by_the_pool(wrong):
                raise NotConnected("the pool closed the connection first", timed_out=False) from wrong
            raise


def _closed_by_the_pool(error: BaseException) -> bool:
    """Whether this side closed a connection on which a request was to begin, as the pool does with one that expires
    between being chosen and being used. The engine, if it heard of the request at all, saw its client leave."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, anyio.ClosedResourceError):
        cause = cause.__cause__ or cause.__context__  # the pool raises anew "from None"
    return cause is not None


async def _next_part(parts: AsyncIterator[bytes]) -> bytes:
    async for part in parts:
        if part:
            return part
    return b""


class HttpxCall:
    """Implements :class:`pdcore.router.upstream.Call`."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell: Callable[[], None] | None = tell
        self._part = b""
        self._taken = asyncio.Event()
        self._wrong: NotConnected | Broken | None = None
        self.task: asyncio.Task[None] | None = None
        self.state: State = "head"
        self.status = 0
        self.headers: Mapping[str, str] = {}

    def take(self) -> bytes:
        part, self._part = self._part, b""
        self._taken.set()
        return part

    def offer_frames(self, take: Frames) -> None:
        return

    def failure(self) -> NotConnected | Broken:
        assert self._wrong is not None
        return self._wrong

    def close(self) -> None:
        self._tell = None
        if self.task is not None and self.state in ("head", "body"):
            self.task.cancel()

    def begin(self, response: httpx.Response) -> None:
        self.status, self.headers = response.status_code, response.headers
        self._change("body")

    async def offer(self, part: bytes) -> None:
        self._part = part
        self._taken.clear()
        self._change("body")
        await self._taken.wait()

    def complete(self) -> None:
        self._change("complete")

    def fail(self, why: NotConnected | Broken) -> None:
        self._wrong = why
        self._change("failed")

    def _change(self, state: State) -> None:
        self.state = state
        if self._tell is not None:
            self._tell()


async def _cancelled_once(work: Coroutine[object, object, ResultT]) -> ResultT:
    """Run ``work`` in a task of its own, with httpx's exceptions translated.

    httpx closes a connection whose user was cancelled, but a second cancellation interrupts the closing and leaves the
    connection open for ever. A task group cancels its child once, however often it is cancelled itself.
    """
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_captured(work))
    result, error = task.result()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def _captured(
    work: Coroutine[object, object, ResultT],
) -> tuple[ResultT | None, NotConnected | Broken | None]:
    try:
        with _translated():
            return await work, None
    except (NotConnected, Broken) as error:
        return None, error


async def _to_its_end(closing: Coroutine[object, object, None]) -> None:
    """Await ``closing`` although this task may be cancelled meanwhile; the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(closing)  # ends before this function does
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as again:
            cancelled = again
    task.result()
    if cancelled is not None:
        raise cancelled


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
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as wrong:
        raise NotConnected(f"no URL of an engine: {wrong}", timed_out=False) from wrong
    except (httpx.HTTPError, httpx.StreamError) as wrong:
        what = next((text for kind, text in _WHAT if isinstance(wrong, kind)), type(wrong).__name__)
        raise Broken(f"{what}: {wrong}") from wrong
