"""What a gRPC error of etcd means in terms of the store contract: one table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import grpc

from pdcore.errors import AccessRefused, Compacted, LeaseGone, StoreError, StoreRefused, StoreUnavailable

_Code = grpc.StatusCode


class PageTooLarge(StoreRefused):
    """An answer was longer than this client accepts: ask for fewer keys."""


class TokenRefused(AccessRefused):
    """A call came without a token that counts (now): log in and send it again. Nothing was done."""


class AuthOff(StoreRefused):
    """Nobody can log in: this etcd asks nobody for a user."""


class HandshakeRefused(AccessRefused):
    """One side does not accept the other's certificate. Nothing was sent; another member may be all right."""


def _compacted(message: str) -> StoreError:
    return Compacted(0)  # a Range's error does not say up to where


ASKS_FOR_USER: Final = "it asks for a user (--store-user and PDCORE_STORE_PASSWORD)"
UNKNOWN_AUTHORITY: Final = "its certificate is not one that --store-ca vouches for"
OTHER_NAME: Final = "its certificate is for another host name or address"
WRONG_CERTIFICATE: Final = "it does not accept our certificate, or wants one (--store-cert and --store-key)"
NO_TLS_THERE: Final = "no TLS there, it seems, though --store-ca asks for it"
TLS_THERE: Final = (
    "the connection was closed at once; does it want TLS (--store-ca), or a certificate (--store-cert)?"
)

_Row = tuple[grpc.StatusCode, str, Callable[[str], StoreError], str]
# The first row whose code is equal and whose text occurs in the details decides; its words go before etcd's own.
# These hold only while there was no connection yet: nothing can have been sent.
_CONNECTING: Final[tuple[_Row, ...]] = (
    (_Code.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED", HandshakeRefused, UNKNOWN_AUTHORITY),
    (_Code.UNAVAILABLE, "Hostname Verification Check failed", HandshakeRefused, OTHER_NAME),
    (_Code.UNAVAILABLE, "TSI_DATA_CORRUPTED", HandshakeRefused, WRONG_CERTIFICATE),
    (_Code.UNAVAILABLE, "Handshake read failed", StoreUnavailable, NO_TLS_THERE),
    (_Code.UNAVAILABLE, "Socket closed", StoreUnavailable, TLS_THERE),
)
_TABLE: Final[tuple[_Row, ...]] = (
    (_Code.UNAVAILABLE, "", StoreUnavailable, ""),
    (_Code.DEADLINE_EXCEEDED, "", StoreUnavailable, ""),
    (_Code.CANCELLED, "", StoreUnavailable, ""),
    (_Code.ABORTED, "", StoreUnavailable, ""),
    (_Code.INTERNAL, "", StoreUnavailable, ""),
    (_Code.UNAUTHENTICATED, "", TokenRefused, ""),
    (_Code.UNKNOWN, "invalid auth token", TokenRefused, ""),
    (_Code.UNKNOWN, "", StoreUnavailable, ""),
    (_Code.INVALID_ARGUMENT, "user name is empty", TokenRefused, ASKS_FOR_USER),
    (_Code.INVALID_ARGUMENT, "revision of auth store is old", TokenRefused, ""),
    (_Code.INVALID_ARGUMENT, "authentication failed", AccessRefused, ""),
    (_Code.PERMISSION_DENIED, "", AccessRefused, ""),
    (_Code.FAILED_PRECONDITION, "authentication is not enabled", AuthOff, ""),
    (_Code.RESOURCE_EXHAUSTED, "larger than max", PageTooLarge, ""),
    (_Code.RESOURCE_EXHAUSTED, "space exceeded", StoreRefused, ""),
    (_Code.RESOURCE_EXHAUSTED, "", StoreUnavailable, ""),
    (_Code.NOT_FOUND, "lease", LeaseGone, ""),
    (_Code.OUT_OF_RANGE, "compacted", _compacted, ""),
)
# How gRPC begins when there is no connection. It repeats the address, which every message names anyway.
_PREAMBLE: Final = re.compile(r"failed to connect to all addresses; last error: [A-Z_]+: (ipv[46]:\S+: )?")
_REASON: Final = re.compile(r"rpc error: code = (?P<code>[A-Za-z]+) desc = (?P<details>.*)", re.DOTALL)


def translate(code: grpc.StatusCode, details: str | None, endpoint: str) -> StoreError:
    """The error to raise for a call to ``endpoint`` that ended with ``code``; what no row names is a refusal.

    Its message is one line.
    """
    text = " ".join((details or "").split())
    said = _PREAMBLE.sub("", text) or code.name.lower()
    rows = _CONNECTING + _TABLE if _PREAMBLE.match(text) else _TABLE
    for row_code, fragment, make, words in rows:
        if code is row_code and fragment in text:
            return make(f"etcd at {endpoint}: {words}: {said}" if words else f"etcd at {endpoint}: {said}")
    return StoreRefused(f"etcd at {endpoint}: {said}")


def translate_cancel(reason: str, endpoint: str) -> StoreError:
    """The same for a watch that etcd cancelled with ``reason``, which is a gRPC error in words or anything else."""
    found = _REASON.fullmatch(reason)
    name = "" if found is None else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found["code"]).upper()
    if found is None or name not in _Code.__members__:
        return StoreUnavailable(f"etcd at {endpoint} ended the watch: {reason or 'no reason'}")
    return translate(_Code[name], found["details"], endpoint)
