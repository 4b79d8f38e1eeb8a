"""What decode keeps about one seq, and what its ledger can ask its session to do."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.transfer.failures import Reason
from pdcore.engine.transfer.slot import Slot
from pdcore.engine.transfer.states import Deadline, TransferState, is_final, runs_in
from pdcore.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """KV and slot of this seq are here, and nothing of it lands any more."""

    seq: int
    peer: Hashable
    index: int
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The request is over, by this seq. Its memory stays quarantined until ``Freed``."""

    seq: int
    peer: Hashable
    code: ErrorCode
    message: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Freed:
    """No write of this seq can land any more, in its blocks or in its slot ``index``."""

    seq: int
    index: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this about ``seq`` to ``peer``."""

    peer: Hashable
    what: Literal["handshake", "abort"]
    seq: int


@dataclass(frozen=True, slots=True)
class Allow:
    """Let writes of ``seq`` land, before ``peer`` is asked for them."""

    peer: Hashable
    seq: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Let no further write of ``seq`` land; what the engine proves, it is told to :meth:`ReceiveLedger.revoked`."""

    peer: Hashable
    seq: int


Effect = Delivered | Ended | Freed | Tell | Allow | Revoke


@dataclass(slots=True, kw_only=True)
class Entry:
    """One seq. ``held``: its memory is not free. ``peer_name`` is for messages; ``resend_at`` is when to tell again."""

    seq: int
    room: int
    peer: Hashable
    peer_name: str
    slot: int
    blocks: BlockLists
    prompt_len: int
    deadline: float
    state: TransferState = TransferState.BOOTSTRAPPING
    held: bool = True
    asked: bool = False
    accepted: bool = False
    allowed: bool = False
    in_doubt: bool = False
    rung: bool = False
    abort_code: ErrorCode = "cancelled"
    resend_at: float = math.inf
    resend_s: float = 0.0

    @property
    def request_over(self) -> bool:
        """The request ended; only its memory or an answer is waited for."""
        return is_final(self.state)

    @property
    def wake_at(self) -> float:
        """The next instant at which something must be done."""
        return min(self.resend_at, self.deadline if runs_in(self.state, Deadline.REQUEST) else math.inf)
