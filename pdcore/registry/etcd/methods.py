"""The remote procedures of etcd that are used here, each with its path on the wire and its two messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from pdcore.registry.etcd import wire_pb2 as wire


class _Request(Protocol):
    def SerializeToString(self) -> bytes: ...


RequestT = TypeVar("RequestT", bound=_Request)
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True)
class Method(Generic[RequestT, ResponseT]):
    """One remote procedure: its path on the wire and the two messages."""

    path: str
    request: type[RequestT]
    response: Any  # type[ResponseT]; protobuf's FromString is typed on the instance's class only


RANGE: Final = Method[wire.RangeRequest, wire.RangeResponse](
    "/etcdserverpb.KV/Range", wire.RangeRequest, wire.RangeResponse
)
TXN: Final = Method[wire.TxnRequest, wire.TxnResponse](
    "/etcdserverpb.KV/Txn", wire.TxnRequest, wire.TxnResponse
)
LEASE_GRANT: Final = Method[wire.LeaseGrantRequest, wire.LeaseGrantResponse](
    "/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantRequest, wire.LeaseGrantResponse
)
LEASE_REVOKE: Final = Method[wire.LeaseRevokeRequest, wire.LeaseRevokeResponse](
    "/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeRequest, wire.LeaseRevokeResponse
)
# A stream in both directions on the server's side; one request and one answer look the same on the wire.
LEASE_KEEP_ALIVE: Final = Method[wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse](
    "/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse
)
WATCH: Final = Method[wire.WatchRequest, wire.WatchResponse](
    "/etcdserverpb.Watch/Watch", wire.WatchRequest, wire.WatchResponse
)
AUTHENTICATE: Final = Method[wire.AuthenticateRequest, wire.AuthenticateResponse](
    "/etcdserverpb.Auth/Authenticate", wire.AuthenticateRequest, wire.AuthenticateResponse
)
STATUS: Final = Method[wire.StatusRequest, wire.StatusResponse](
    "/etcdserverpb.Maintenance/Status", wire.StatusRequest, wire.StatusResponse
)
ALARM: Final = Method[wire.AlarmRequest, wire.AlarmResponse](
    "/etcdserverpb.Maintenance/Alarm", wire.AlarmRequest, wire.AlarmResponse
)
MEMBER_LIST: Final = Method[wire.MemberListRequest, wire.MemberListResponse](
    "/etcdserverpb.Cluster/MemberList", wire.MemberListRequest, wire.MemberListResponse
)
