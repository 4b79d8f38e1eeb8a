"""The values a scheduler returns: what to do in this step, and what a finished step meant."""

from __future__ import annotations

from dataclasses import dataclass

from pdcore.engine.messages import Output
from pdcore.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Run the model on ``token_ids`` at positions ``start …``; ``samples`` iff the next token is wanted.

    ``block_table`` covers every position up to the last of these tokens.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    samples: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Decode: ask prefill for this request's KV, to be written into ``blocks``."""

    request_id: str
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """Prefill: the KV of ``room`` is complete in ``blocks`` (pinned until the write has ended); send it."""

    request_id: str
    room: int
    blocks: tuple[int, ...]
    first_token: int
    kv_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The request is over and its blocks are let go of."""

    request_id: str
    room: int
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything this step does, decided by one rank and the same for all ranks of its DP group."""

    admit: tuple[Admit, ...]
    batch: tuple[Compute, ...]
    fail: tuple[Failure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the computed tokens of a step mean: text for the leader, hand-offs for the transfer session."""

    outputs: tuple[Output, ...] = ()
    handoffs: tuple[Handoff, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Queue lengths of this instant. ``queued`` holds no blocks; ``transferring`` waits for a peer."""

    queued: int
    transferring: int
    running: int
    retracted_total: int
