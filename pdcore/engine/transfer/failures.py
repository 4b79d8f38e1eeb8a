"""Why hand-offs fail, counted in two families that never mix. Pure.

The *request* family is nobody's transport: not admitted, no agreement at the handshake, out of time, given up. The
*transfer* family blames a path: which engine, towards which peer, how. Each failed hand-off (or leg) of a rank counts
once, in one family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from pdcore.errors import ErrorCode

RequestReason = Literal["admission", "handshake", "deadline", "abort"]
TransferReason = Literal["gone", "silent", "failed", "in_doubt", "disagreed"]
Reason = RequestReason | TransferReason

REQUEST_REASONS: Final = frozenset(get_args(RequestReason))
_PATHS_MOST: Final = 256
_BY_CODE: Final[Mapping[ErrorCode, RequestReason]] = {
    "cancelled": "abort",
    "deadline_exceeded": "deadline",
    "rate_limited": "admission",
    "peer_backlog": "admission",
    "room_in_use": "admission",
    "invalid_request": "admission",
}


class Path(NamedTuple):
    """What a transfer failure blames. ``peer`` is an instance and rank, without its incarnation."""

    engine: str
    peer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStatistics:
    """Totals since the session opened."""

    request: Mapping[str, int]
    transfer: Mapping[Path, int]


class FailureCounts:
    """See the module. Bounded: paths beyond the first few hundred count as one called ``others``."""

    def __init__(self) -> None:
        self._request: Counter[str] = Counter()
        self._transfer: Counter[Path] = Counter()

    def add(self, reason: Reason, engine: str, peer: str) -> None:
        """One more hand-off failed for ``reason``; engine and peer matter only to the transfer family."""
        if reason in REQUEST_REASONS:
            self._request[reason] += 1
            return
        path = Path(engine, peer, reason)
        full = len(self._transfer) >= _PATHS_MOST and path not in self._transfer
        self._transfer[Path(engine, "others", reason) if full else path] += 1

    def statistics(self) -> FailureStatistics:
        """Copies of this instant."""
        return FailureStatistics(request=dict(self._request), transfer=dict(self._transfer))


def given_up(code: ErrorCode) -> RequestReason:
    """The request family's reason for a hand-off that somebody ended with ``code``."""
    return _BY_CODE.get(code, "abort")
