"""Ask one address whether it is the incarnation it should be: a bounded ``GET /health`` without an HTTP library."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

OK: Final = 200
UNNAMED: Final = "unnamed-"
"""How an incarnation begins that was made up for an engine that names none itself."""
_HAS_NO_HEALTH: Final = frozenset({404, 405, 501})
_MAX_ANSWER_BYTES: Final = 16 << 10
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


class _Body(msgspec.Struct):
    incarnation: str | None = None
    status: object = None


class Health(NamedTuple):
    """What ``/health`` said: its status, the incarnation it names if it names one, and its word for how it is."""

    status: int
    incarnation: str | None
    word: object = None

    @property
    def is_good(self) -> bool:
        """It says that it is well, or knows no such question but is there."""
        return self.status == OK or (self.incarnation is None and self.status in _HAS_NO_HEALTH)


async def answering_incarnation(url: str, timeout_s: float) -> str | None:
    """The incarnation that ``{url}/health`` reports, None when nobody answers so within ``timeout_s``.

    Refused connections, silence and answers of another kind are all None.
    """
    try:
        async with asyncio.timeout(timeout_s):
            health = await ask_health(url)
    except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
        return None
    return health.incarnation if health.status == OK else None


async def ask_health(url: str, tls: ssl.SSLContext | None = None) -> Health:
    """The answer of ``{url}/health``. Raises OSError, EOFError, ValueError or LimitOverrunError when there is none.

    ``tls`` speaks to https URLs, the machine's trust if None. It has no deadline of its own.
    """
    return parse_answer(await _get(url, "/health", {}, tls))


async def fetch(
    url: str, path: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of ``{url}{path}``, a small one. Raises as :func:`ask_health` does, and has no deadline either."""
    answer = await _get(url, path, headers, tls)
    return parse_answer(answer).status, answer.partition(b"\r\n\r\n")[2]


def parse_answer(answer: bytes) -> Health:
    """A whole HTTP response; ValueError when it is none."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or not status[1].isdigit():
        raise ValueError("the answer is not HTTP")
    try:
        said = msgspec.json.decode(body, type=_Body)
        return Health(int(status[1]), said.incarnation, said.status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Health(int(status[1]), None)


def content_length(head: bytes) -> int | None:
    """The body's length as an HTTP head announces it, None when it does not."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return None


async def _get(url: str, path: str, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> bytes:
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or parts.hostname is None:
        raise ValueError(f"{url} is not an http URL")
    context = None if parts.scheme == "http" else tls or _machines_trust()
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or _PORTS[parts.scheme], limit=_MAX_ANSWER_BYTES, ssl=context
    )
    try:
        # HTTP/1.0: an answer of unknown length ends where the connection does, never chunked.
        sent = {"Host": parts.netloc, "Connection": "close", **headers}
        lines = (f"GET {path} HTTP/1.0", *(f"{name}: {value}" for name, value in sent.items()))
        writer.write("\r\n".join((*lines, "", "")).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await _read_body(reader, content_length(head))
    finally:
        writer.transport.abort()


@cache
def _machines_trust() -> ssl.SSLContext:
    """Read once: it is a file of hundreds of certificates, and probes are many."""
    return ssl.create_default_context()


async def _read_body(reader: asyncio.StreamReader, length: int | None) -> bytes:
    """``length`` bytes, or all there are; bounded either way."""
    if length is not None:
        return await reader.readexactly(min(length, _MAX_ANSWER_BYTES))
    body = bytearray()
    while len(body) < _MAX_ANSWER_BYTES and (chunk := await reader.read(_MAX_ANSWER_BYTES)):
        body += chunk
    return bytes(body)
