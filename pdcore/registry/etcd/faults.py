"""What a gRPC error of etcd means in terms of the store contract: one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import grpc

from pdcore.errors import Compacted, LeaseGone, StoreError, StoreRefused, StoreUnavailable

_Code = grpc.StatusCode


class PageTooLarge(StoreRefused):
    """An answer was longer than this client accepts: ask for fewer keys."""


def _compacted(message: str) -> StoreError:
    return Compacted(0)  # a Range's error does not say up to where


# The first row whose code is equal and whose text occurs in the details decides.
_TABLE: Final[tuple[tuple[grpc.StatusCode, str, Callable[[str], StoreError]], ...]] = (
    (_Code.UNAVAILABLE, "", StoreUnavailable),
    (_Code.DEADLINE_EXCEEDED, "", StoreUnavailable),
    (_Code.CANCELLED, "", StoreUnavailable),
    (_Code.ABORTED, "", StoreUnavailable),
    (_Code.INTERNAL, "", StoreUnavailable),
    (_Code.UNKNOWN, "", StoreUnavailable),
    (_Code.RESOURCE_EXHAUSTED, "larger than max", PageTooLarge),
    (_Code.RESOURCE_EXHAUSTED, "space exceeded", StoreRefused),
    (_Code.RESOURCE_EXHAUSTED, "", StoreUnavailable),
    (_Code.NOT_FOUND, "lease", LeaseGone),
    (_Code.OUT_OF_RANGE, "compacted", _compacted),
)


def translate(code: grpc.StatusCode, details: str | None, endpoint: str) -> StoreError:
    """The error to raise for a call to ``endpoint`` that ended with ``code``; what no row names is a refusal."""
    text = details or ""
    message = f"etcd at {endpoint}: {text or code.name.lower()}"
    for row_code, fragment, make in _TABLE:
        if code is row_code and fragment in text:
            return make(message)
    return StoreRefused(message)
