"""Which headers cross the router, in both directions. Pure.

Nothing crosses unless it is named here: hop-by-hop headers, credentials, ``content-length`` and everything internal
stay on their side. Header names are lower-case bytes, as ASGI gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pdcore.errors import ApiError
from pdcore.router.chance import take

RawHeaders = Iterable[tuple[bytes, bytes]]

MAX_REQUEST_ID: Final = 128
MAX_HEADER_BYTES: Final = 64 << 10
FORWARDED: Final = frozenset({b"traceparent", b"tracestate"})
CANDIDATE: Final = b"x-pdcore-candidate"
"""The secret of a group's restart: a request that knows it goes to the generation that is to be proven."""
_READ: Final = FORWARDED | {b"content-encoding", b"content-length", b"x-request-id", CANDIDATE}
RETURNED: Final = frozenset({"content-type", "cache-control", "retry-after"})


def new_request_id() -> str:
    """A request id for a client that sent none."""
    return "req-" + take(12).hex()


class Head(NamedTuple):
    """What the router needs of a request's headers. ``forwarded`` is what both legs carry on."""

    request_id: str
    content_length: int | None
    forwarded: dict[str, str]
    candidate: str | None = None


def read(headers: RawHeaders) -> Head:
    """Read them in one go; a client that sent no id gets a new one.

    Raises :class:`ApiError`: 431 when the headers are too large, 415 for a compressed body, 400 for a bad id.
    """
    size, said = 0, []
    for header in headers:
        size += len(header[0]) + len(header[1])
        if header[0] in _READ:
            said.append(header)
    if size > MAX_HEADER_BYTES:
        raise ApiError("headers_too_large", f"the headers are larger than {MAX_HEADER_BYTES} bytes")
    length: int | None = None
    given: list[bytes] = []
    carried: dict[str, str] = {}
    candidate: str | None = None
    for name, value in said:
        if name == b"content-length":
            length = int(value) if value.isdigit() and len(value) < 20 else None
        elif name == b"x-request-id":
            given.append(value)
        elif name == CANDIDATE:
            candidate = value.decode("latin-1")
        elif name in FORWARDED:
            carried[name.decode("latin-1")] = value.decode("latin-1")
        elif value.strip().lower() not in (b"", b"identity"):
            raise ApiError("unsupported_media_type", "a compressed request body is not supported")
    return Head(_request_id(given) if given else new_request_id(), length, carried, candidate)


def _request_id(given: list[bytes]) -> str:
    good = (
        len(given) == 1 and 0 < len(given[0]) <= MAX_REQUEST_ID and all(0x21 <= b <= 0x7E for b in given[0])
    )
    if not good:
        why = f"must be one header of 1 to {MAX_REQUEST_ID} visible ASCII characters"
        raise ApiError("invalid_request", f"x-request-id {why}", param="x-request-id")
    return given[0].decode("ascii")


def returned(engine: Mapping[str, str]) -> dict[str, str]:
    """The decode leg's headers that the client gets; length and encoding are always ours."""
    return {name: value for name, value in engine.items() if name in RETURNED}


def as_raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI wants them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
