"""Every error pdcore raises on purpose: whose fault it is, and what the other side may do next.

``PdcoreError`` is the root. Four families hang below it: :class:`ConfigError` (the person who started the
process), :class:`ApiError` (one request; carries the public code), :class:`StoreError` (the keyspace) and
:class:`PeerError` (another engine). Drivers translate their library's exceptions into these, nothing above a
driver sees a foreign exception, and the HTTP status of a request error is chosen in one table below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


class PdcoreError(Exception):
    """Root of the tree; never raised itself."""


class ConfigError(PdcoreError):
    """What a process was given cannot work. ``problems`` are whole sentences; exit status 2."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Superseded(PdcoreError):
    """Another start of the same instance holds the claim: stop serving, never register again."""

    def __init__(self, instance_id: str, holder: str) -> None:
        super().__init__(f"instance {instance_id} now belongs to incarnation {holder}")
        self.instance_id = instance_id
        self.holder = holder


ErrorCode = Literal[
    "invalid_request",
    "context_length_exceeded",
    "unauthorized",
    "forbidden",
    "not_found",
    "model_not_found",
    "method_not_allowed",
    "room_in_use",
    "body_too_large",
    "unsupported_media_type",
    "not_executed",
    "rate_limited",
    "headers_too_large",
    "internal",
    "prefill_failed",
    "decode_failed",
    "abort_oom",
    "backend_unavailable",
    "peer_backlog",
    "preempted_oom",
    "deadline_exceeded",
    "cancelled",
]
"""The closed set of ``error.code`` values a client can meet."""


@dataclass(frozen=True, slots=True)
class _Public:
    status: int
    type: str
    retry_after_s: int | None = None


_PUBLIC: Final[dict[ErrorCode, _Public]] = {
    "invalid_request": _Public(400, "invalid_request_error"),
    "context_length_exceeded": _Public(400, "invalid_request_error"),
    "unauthorized": _Public(401, "authentication_error"),
    "forbidden": _Public(403, "permission_error"),
    "not_found": _Public(404, "not_found_error"),
    "model_not_found": _Public(404, "not_found_error"),
    "method_not_allowed": _Public(405, "invalid_request_error"),
    "room_in_use": _Public(409, "conflict_error"),
    "body_too_large": _Public(413, "invalid_request_error"),
    "unsupported_media_type": _Public(415, "invalid_request_error"),
    "not_executed": _Public(421, "not_executed_error"),
    "rate_limited": _Public(429, "rate_limit_error"),
    "headers_too_large": _Public(431, "invalid_request_error"),
    "internal": _Public(500, "server_error"),
    "prefill_failed": _Public(502, "upstream_error"),
    "decode_failed": _Public(502, "upstream_error"),
    "abort_oom": _Public(502, "upstream_error"),
    "backend_unavailable": _Public(503, "unavailable_error"),
    "peer_backlog": _Public(503, "unavailable_error", retry_after_s=1),
    "preempted_oom": _Public(503, "unavailable_error", retry_after_s=1),
    "deadline_exceeded": _Public(504, "timeout_error"),
    "cancelled": _Public(499, "cancelled_error"),  # nobody is left to read it; access logs and metrics do
}


class ApiError(PdcoreError):
    """One request failed. ``message`` is a sentence for the client that names the field and the value.

    ``param`` is the offending field. ``detail`` is what an engine said (status, message), for operators.
    ``retry_after_s`` becomes the ``Retry-After`` header; some codes have one by themselves. ``refused`` is the reason of
    a 421.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        detail: dict[str, object] | None = None,
        retry_after_s: int | None = None,
        refused: Literal["stale", "draining", "not_ready"] | None = None,
    ) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.param = param
        self.detail = detail
        self.retry_after_s = _PUBLIC[code].retry_after_s if retry_after_s is None else retry_after_s
        self.refused = refused

    @property
    def status(self) -> int:
        """The HTTP status of this error's code."""
        return _PUBLIC[self.code].status

    def headers(self) -> dict[str, str]:
        """The response headers this error brings along."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.refused is not None:
            headers["x-pdcore-refused"] = self.refused
        if self.code == "unauthorized":
            headers["www-authenticate"] = "Bearer"
        return headers

    def body(self, request_id: str | None) -> dict[str, object]:
        """The JSON body every pdcore endpoint answers an error with."""
        error: dict[str, object] = {
            "message": self.message,
            "type": _PUBLIC[self.code].type,
            "code": self.code,
            "param": self.param,
            "request_id": request_id,
        }
        if self.detail is not None:
            error["detail"] = self.detail
        return {"error": error}


def error_code(value: object) -> ErrorCode | None:
    """The code named by ``value`` if it is one of ours (an engine's error body may carry anything)."""
    return value if isinstance(value, str) and value in _PUBLIC else None


class StoreError(PdcoreError):
    """The store refused or could not be reached."""


class StoreUnavailable(StoreError):
    """No answer, or no endpoint that could give one. A transaction that ends so may have been committed."""


class StoreRefused(StoreError):
    """The store answered and will answer the same again: no permission, quota used up, malformed."""


class AccessRefused(StoreRefused):
    """The store does not take us for who we say we are, or wants to know: certificate, user, password, permission.

    A process that meets this at its start ends with exit status 2; one that was working keeps trying and says so.
    """


class LeaseGone(StoreError):
    """The lease expired or was revoked; its keys are gone with it."""


class Compacted(StoreError):
    """The asked revision is no longer kept. List again; history before ``compacted_revision`` is gone."""

    def __init__(self, compacted_revision: int) -> None:
        super().__init__(f"revisions up to {compacted_revision} are compacted away")
        self.compacted_revision = compacted_revision


class PeerError(PdcoreError):
    """A KV transfer with another rank failed. ``in_doubt``: the write may still land."""

    def __init__(self, message: str, *, in_doubt: bool) -> None:
        super().__init__(message)
        self.in_doubt = in_doubt


class PeerGone(PeerError):
    """The peer process ended, or its memory is fenced off."""


class TransferTimeout(PeerError):
    """The write did not report a result in time."""


class RejectedByPeer(PeerError):
    """The peer, or the bounds check on our side, refused the write: nothing landed."""


class CollectiveFailed(PdcoreError):
    """Another rank of this instance died, stands still or never came: the instance ends, exit status 70."""
