"""Every way a call to etcd can fail, and what that means."""

from __future__ import annotations

import grpc
import pytest

from pdcore.errors import (
    AccessRefused,
    Compacted,
    LeaseGone,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from pdcore.registry.etcd.faults import (
    AuthOff,
    HandshakeRefused,
    PageTooLarge,
    TokenRefused,
    translate,
    translate_cancel,
)

pytestmark = pytest.mark.unit
Code = grpc.StatusCode
CONNECTING = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (Code.UNAVAILABLE, "failed to connect", StoreUnavailable),
        (Code.UNAVAILABLE, "etcdserver: no leader", StoreUnavailable),
        (Code.UNAVAILABLE, "etcdserver: request timed out", StoreUnavailable),
        (Code.UNAVAILABLE, CONNECTING + "x CERTIFICATE_VERIFY_FAILED: expired", HandshakeRefused),
        (Code.UNAVAILABLE, CONNECTING + "Unwrap failed (TSI_DATA_CORRUPTED)", HandshakeRefused),
        (
            Code.UNAVAILABLE,
            CONNECTING + "UNAUTHENTICATED: Hostname Verification Check failed.",
            HandshakeRefused,
        ),
        (Code.UNAVAILABLE, CONNECTING + "Handshake read failed (Socket closed)", StoreUnavailable),
        (Code.UNAVAILABLE, "Unwrap failed (TSI_DATA_CORRUPTED)", StoreUnavailable),
        (Code.DEADLINE_EXCEEDED, None, StoreUnavailable),
        (Code.CANCELLED, None, StoreUnavailable),
        (Code.ABORTED, None, StoreUnavailable),
        (Code.INTERNAL, "stream reset", StoreUnavailable),
        (Code.UNKNOWN, "context deadline exceeded", StoreUnavailable),
        (Code.UNKNOWN, "auth: invalid auth token", TokenRefused),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", TokenRefused),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", TokenRefused),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", TokenRefused),
        (Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID", AccessRefused),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", StoreRefused),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", AccessRefused),
        (Code.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", AuthOff),
        (Code.FAILED_PRECONDITION, "anything else", StoreRefused),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", StoreRefused),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", StoreUnavailable),
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (5 vs. 4)", PageTooLarge),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseGone),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (Code.UNIMPLEMENTED, "unknown service", StoreRefused),
    ],
)
def test_every_fault_has_a_class(code: grpc.StatusCode, details: str | None, kind: type[StoreError]) -> None:
    assert type(translate(code, details, "a:1")) is kind


def test_a_fault_names_the_member_and_says_it_in_one_line() -> None:
    assert str(translate(Code.UNAVAILABLE, "refused", "a:1")) == "etcd at a:1: refused"
    assert str(translate(Code.DEADLINE_EXCEEDED, "", "a:1")) == "etcd at a:1: deadline_exceeded"
    assert str(translate(Code.INTERNAL, "one\n two", "a:1")) == "etcd at a:1: one two"


def test_the_reason_comes_without_the_address_again() -> None:
    said = translate(Code.UNAVAILABLE, CONNECTING + "connect: Connection refused", "a:1")
    assert str(said) == "etcd at a:1: connect: Connection refused"


@pytest.mark.parametrize(
    ("code", "details", "names"),
    [
        (Code.UNAVAILABLE, CONNECTING + "CERTIFICATE_VERIFY_FAILED", "--store-ca"),
        (Code.UNAVAILABLE, CONNECTING + "TSI_DATA_CORRUPTED", "--store-cert"),
        (Code.UNAVAILABLE, CONNECTING + "Socket closed", "--store-ca"),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", "--store-user and PDCORE_STORE_PASSWORD"),
    ],
)
def test_what_a_setting_can_mend_names_it(code: grpc.StatusCode, details: str, names: str) -> None:
    assert names in str(translate(code, details, "a:1"))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", TokenRefused),
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied", AccessRefused),
        ("rpc error: code = InvalidArgument desc = etcdserver: user name is empty", TokenRefused),
        ("rpc error: code = Nonsense desc = x", StoreUnavailable),
        ("etcdserver: watch closed", StoreUnavailable),
        ("", StoreUnavailable),
    ],
)
def test_a_cancelled_watch_fails_as_a_call_would(reason: str, kind: type[StoreError]) -> None:
    error = translate_cancel(reason, "a:1")
    assert type(error) is kind
    assert str(error).startswith("etcd at a:1")
