"""What a leader and its ranks say to each other, as msgpack over ZMQ. Schemas only: nothing here acts.

The leader owns text: tokens go in, tokens come out. Durations travel as remaining milliseconds, never as instants,
because the two processes' clocks need not agree.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pdcore.engine.transfer.orders import PrefillPeer
from pdcore.errors import ErrorCode

MAX_MESSAGE_BYTES: Final = 64 << 20


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 mean no limit.

    Noise is keyed by (``seed``, position), so the same seed gives the same text on any instance.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a request ends by itself: ``max_tokens`` ≥ 1, or one of ``stop_token_ids`` unless ``ignore_eos``."""

    max_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Leader to rank: a new request. ``room`` is 0 for a unified request, and ``prefill`` set only for decode.

    ``expected_peer`` is, for a prefill rank, the incarnation of the decode instance that will ask for the KV
    (None: any).
    """

    request_id: str
    room: int
    prompt: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    remaining_ms: int
    prefill: PrefillPeer | None = None
    expected_peer: str | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Leader to rank: nobody wants this request any more. Unknown ids are ignored."""

    request_id: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Leader to rank: end the process."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Rank to leader, once: model loaded, pool, slots and scratch registered with the transfer engine."""

    dp: int
    cp: int
    tp: int
    pid: int
    rank_ip: str
    rank_port: int | None
    transfer: dict[str, object]
    device: str
    kv_tokens: int
    compat: dict[str, object]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request. ``finish_reason`` (stop, length) comes with the last ones.

    The first output of a decode request also says that its KV arrived.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """Rank to leader: everything one step produced."""

    outputs: tuple[Output, ...]


class HandedOff(msgspec.Struct, frozen=True, kw_only=True, tag="handed_off"):
    """Prefill rank to leader: KV and slot of this request are in the decode rank's memory."""

    request_id: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Rank to leader: this request ended without success."""

    request_id: str
    code: ErrorCode
    message: str


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Rank to leader: gauges, at most ten a second while busy and once more when the rank falls idle."""

    steps: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_quarantined: int
    slots_total: int
    slots_used: int
    rooms: int
    queued: int
    running: int
    transferring: int
    handoffs_ok: int
    handoffs_failed: int
    prefill_tokens: int
    output_tokens: int


ToRank = Start | Abort | Stop
ToLeader = Ready | Step | HandedOff | Failed | Stats
