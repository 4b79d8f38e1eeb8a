"""A POST as the bytes that go to an engine, and where they go. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pdcore.router.upstream import NotConnected

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ALWAYS: Final = "accept-encoding: identity\r\ncontent-type: application/json\r\n"


class Origin(NamedTuple):
    """What a connection leads to; requests to one origin share its connections."""

    host: str
    port: int
    tls: bool


class Target(NamedTuple):
    """An origin, and how a head begins that asks for one path there."""

    origin: Origin
    opening: bytes


def target(url: str) -> Target:
    """Where ``url`` leads. Raises NotConnected for one that nobody can connect to."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as wrong:
        raise NotConnected(f"{url[:256]!r} is no URL: {wrong}", timed_out=False) from None
    if parts.scheme not in _DEFAULT_PORTS or not host or parts.username is not None:
        raise NotConnected(f"{url[:256]!r} is no URL of an engine", timed_out=False)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    named = f"[{host}]" if ":" in host else host
    host_header = named if port is None else f"{named}:{port}"
    if not all("!" <= character <= "~" for character in path + host_header):
        raise NotConnected(f"{url[:256]!r} has characters that no request may carry", timed_out=False)
    origin = Origin(host, port or _DEFAULT_PORTS[parts.scheme], parts.scheme == "https")
    return Target(origin, f"POST {path} HTTP/1.1\r\nhost: {host_header}\r\n{_ALWAYS}".encode("ascii"))


def worded(headers: Mapping[str, str]) -> bytes:
    """Headers as lines. They must not name what a head has by itself (host, length, encodings, type).

    Raises ValueError for a header that would be more than one, or that HTTP cannot carry.
    """
    lines = [f"{name}: {value}" for name, value in headers.items()]
    said = "".join(lines)
    if "\n" in said or "\r" in said or "\0" in said:
        raise ValueError("a header holds a line end")
    return "\r\n".join([*lines, ""]).encode("latin-1")


def head(to: Target, lines: bytes, body_bytes: int) -> bytes:
    """The request's head with the ``lines`` of its own headers."""
    return b"%b%bcontent-length: %d\r\n\r\n" % (to.opening, lines, body_bytes)
