"""Which headers cross the router, in both directions. Pure.

Nothing crosses unless it is named here: hop-by-hop headers, credentials, ``content-length`` and everything internal
stay on their side. Header names are lower-case bytes, as ASGI gives them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Final

from pdcore.errors import ApiError

RawHeaders = Iterable[tuple[bytes, bytes]]

MAX_REQUEST_ID: Final = 128
MAX_HEADER_BYTES: Final = 64 << 10
FORWARDED: Final = frozenset({b"traceparent", b"tracestate"})
RETURNED: Final = frozenset({"content-type", "cache-control", "retry-after"})


def new_request_id() -> str:
    """A request id for a client that sent none."""
    return "req-" + secrets.token_hex(12)


def check(headers: RawHeaders) -> str:
    """The request's id: the client's own if it is usable, a new one if there is none.

    Raises :class:`ApiError`: 431 when the headers are too large, 415 for a compressed body, 400 for a bad id.
    """
    found = list(headers)
    if sum(len(name) + len(value) for name, value in found) > MAX_HEADER_BYTES:
        raise ApiError("headers_too_large", f"the headers are larger than {MAX_HEADER_BYTES} bytes")
    encodings = _values(found, b"content-encoding")
    if any(value.strip().lower() not in (b"", b"identity") for value in encodings):
        raise ApiError("unsupported_media_type", "a compressed request body is not supported")
    return _request_id(_values(found, b"x-request-id"))


def _request_id(given: list[bytes]) -> str:
    if not given:
        return new_request_id()
    good = (
        len(given) == 1 and 0 < len(given[0]) <= MAX_REQUEST_ID and all(0x21 <= b <= 0x7E for b in given[0])
    )
    if not good:
        why = f"must be one header of 1 to {MAX_REQUEST_ID} visible ASCII characters"
        raise ApiError("invalid_request", f"x-request-id {why}", param="x-request-id")
    return given[0].decode("ascii")


def _values(headers: RawHeaders, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def forwarded(headers: RawHeaders) -> dict[str, str]:
    """The client's headers that both legs carry on."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in FORWARDED}


def returned(engine: Mapping[str, str]) -> dict[str, str]:
    """The decode leg's headers that the client gets; length and encoding are always ours."""
    return {name: value for name, value in engine.items() if name in RETURNED}


def content_length(headers: RawHeaders) -> int | None:
    """The announced size of the body, if it is a number."""
    values = _values(headers, b"content-length")
    return int(values[0]) if values and values[0].isdigit() else None


def as_raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI wants them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
