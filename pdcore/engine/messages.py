"""What a leader and its ranks say to each other, as msgpack over ZMQ. Schemas only: nothing here acts.

The leader owns text: tokens go in, tokens come out. Durations travel as remaining milliseconds, never as instants,
because the two processes' clocks need not agree.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pdcore.engine.transfer.orders import PrefillGroup, TokenLogprobs
from pdcore.errors import ErrorCode

MAX_MESSAGE_BYTES: Final = 64 << 20


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean no limit.

    Noise is keyed by (``seed``, position), so the same seed gives the same text on any instance. ``bias`` is added to
    the logits of its token ids. ``top_logprobs``: how many of the likeliest tokens are reported beside each chosen one
    (None: nothing is reported).
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When a request ends by itself: ``max_tokens`` ≥ 1, or one of ``stop_token_ids`` unless ``ignore_eos``.

    None of ``stop_token_ids`` is sampled before ``min_tokens`` others were.
    """

    max_tokens: int
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    min_tokens: int = 0


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Leader to rank: a new request. ``room`` is 0 for a unified request, and ``prefill`` set only for decode.

    ``expected_peer`` is, for a prefill rank, the incarnation of the decode instance that will ask for the KV
    (None: any). The last ``resumed`` tokens of the prompt were generated elsewhere: penalties count them as output.
    """

    request_id: str
    room: int
    prompt: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    remaining_ms: int
    prefill: PrefillGroup | None = None
    expected_peer: str | None = None
    resumed: int = 0


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


class Output(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New tokens of one request. ``finish_reason`` (stop, length) comes with the last ones.

    The first output of a decode request also says that its KV arrived. ``logprobs`` has one entry per token if the
    request asked for them, else none. ``cached_tokens``, on the first output, are those of the prompt whose KV was
    there before.
    """

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0


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


class EndPeer(msgspec.Struct, frozen=True, kw_only=True, tag="end_peer"):
    """Decode rank to leader: this prefill instance has left memory undrained for ``age_s``; have its end ordered."""

    instance_id: str
    incarnation: str
    age_s: float


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag="restart"):
    """Decode rank to leader, once: only new memory makes this instance safe again, for the reason ``why``."""

    why: str


class PathFailures(msgspec.Struct, frozen=True, kw_only=True):
    """How often hand-offs failed on one way: by which transfer engine, towards which peer, how."""

    engine: str
    peer: str
    reason: str
    count: int


class PeerDown(msgspec.Struct, frozen=True, kw_only=True):
    """A prefill rank that this decode rank does not reach, and why it thinks so."""

    instance_id: str
    incarnation: str
    rank: str
    why: str


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Rank to leader: gauges, at most ten a second while busy, once more when the rank falls idle, and one a second in
    any case.

    Requests and blocks are those of the DP group and told by its DP leader; they are 0 from its other ranks, so that a
    sum over ranks counts everything once. Failed hand-offs are in one of two families, which never mix: a request's own,
    by reason, and a path's.
    """

    steps: int
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_quarantined: int = 0
    slots_total: int = 0
    slots_used: int = 0
    rooms: int = 0
    bootstrap: int = 0
    prealloc: int = 0
    transfer: int = 0
    running: int = 0
    retracted: int = 0
    retracted_total: int = 0
    handoffs_ok: int = 0
    handoffs_failed: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    prefix_tokens: int = 0
    prefix_hit_tokens: int = 0
    request_failures: dict[str, int] = {}
    transfer_failures: tuple[PathFailures, ...] = ()
    peers_down: tuple[PeerDown, ...] = ()


ToRank = Start | Abort | Stop
ToLeader = Ready | Step | HandedOff | Failed | EndPeer | Restart | Stats
