"""What a scheduler may hold, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STUCK_AFTER_S: Final = 1.0
"""Memory that has waited so long for a peer is not counted on to come back by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """``reserved_tokens`` are kept free for each admitted request to grow; ``slots`` caps hand-offs whose memory may
    still be written. Of decode's blocks and of its places in the batch at most ``peer_share`` wait for one prefill instance
    and ``total_share`` for all of them.

    Seconds: a request that its peer's share keeps out for ``backlog_s`` is refused; a peer that leaves memory undrained
    for ``quarantine_s`` is to be ended; if that brings no fence for ``fence_s``, this instance is to be restarted.
    """

    context_length: int
    max_batch: int
    max_prefill_tokens: int
    max_queue: int
    reserved_tokens: int
    slots: int
    peer_share: float = 0.25
    total_share: float = 0.5
    backlog_s: float = 5.0
    quarantine_s: float = 15.0
    fence_s: float = 20.0
