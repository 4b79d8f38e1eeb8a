"""The values a scheduler returns: what to do in this step, and what a finished step meant.

They are msgspec Structs because other ranks execute them, and because building them is most of what a step costs.
"""

from __future__ import annotations

import msgspec

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.messages import Output
from pdcore.engine.transfer.orders import TokenLogprobs
from pdcore.errors import ErrorCode


class Compute(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Run the model on ``token_ids`` at positions ``start …``; ``samples`` iff the next token is wanted.

    ``block_tables`` cover every position up to the last of these tokens, in every KV group. It is the same object
    from step to step until the request grows.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_tables: BlockLists
    samples: bool


class Admit(msgspec.Struct, frozen=True, kw_only=True):
    """Decode: ask prefill for this request's KV, to be written into ``blocks``, under the name ``handoff``."""

    request_id: str
    handoff: int
    room: int
    blocks: BlockLists


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill: the KV of ``computed`` of the ``kv_len`` tokens of ``room`` lies in ``blocks`` (pinned until the write has
    ended), and more is computed; send what is full, or all. ``first`` unless some of it was to be sent before."""

    room: int
    blocks: BlockLists
    kv_len: int
    computed: int
    first: bool


class Handoff(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill: the KV of ``room`` is complete in ``blocks`` (pinned until the write has ended); send it.

    ``logprobs`` are those of the first token, where the request asked for them. ``first`` as of :class:`Ahead`.
    """

    request_id: str
    room: int
    blocks: BlockLists
    first_token: int
    kv_len: int
    cached_blocks: int = 0
    logprobs: TokenLogprobs | None = None
    first: bool = True


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The request is over and its blocks are let go of.

    With a ``handoff`` its KV was on its way to here: the sender is to be told, and the blocks wait for ``drained``.
    """

    request_id: str
    room: int
    code: ErrorCode
    message: str
    handoff: int | None = None


class EndPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Decode: this prefill instance has left memory undrained for ``age_s`` seconds; its end is to be ordered."""

    instance_id: str
    incarnation: str
    age_s: float


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything this step does, decided by one rank and the same for all ranks of its DP group.

    ``prompt_tokens`` of those in ``batch`` are no request's newest alone: prompts, and what is computed once more.
    ``completing`` holds as soon as the KV of ``batch`` is in memory. ``restart`` says why this instance has to drain
    and start anew: memory that nothing else can make safe again.
    """

    admit: tuple[Admit, ...]
    batch: tuple[Compute, ...]
    fail: tuple[Failure, ...]
    prompt_tokens: int = 0
    ahead: tuple[Ahead, ...] = ()
    completing: tuple[Ahead, ...] = ()
    end_peers: tuple[EndPeer, ...] = ()
    restart: str | None = None


class PlanInMaking:
    """What a plan holds so far."""

    __slots__ = ("admit", "fail", "prompt_tokens")

    def __init__(self) -> None:
        self.admit: list[Admit] = []
        self.fail: list[Failure] = []
        self.prompt_tokens = 0

    def finished(
        self, batch: tuple[Compute, ...], *, end_peers: tuple[EndPeer, ...] = (), restart: str | None = None
    ) -> StepPlan:
        """The plan, which computes ``batch``."""
        return StepPlan(
            admit=tuple(self.admit),
            batch=batch,
            fail=tuple(self.fail),
            prompt_tokens=self.prompt_tokens,
            end_peers=end_peers,
            restart=restart,
        )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the computed tokens of a step mean: text for the leader, hand-offs for the transfer session."""

    outputs: tuple[Output, ...] = ()
    handoffs: tuple[Handoff, ...] = ()


class SchedulerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by place at this instant (see ``places``); and so far: how often one gave its blocks back, how many
    prompt tokens could have been there already, and how many were."""

    bootstrap: int
    prealloc: int
    transfer: int
    running: int
    retracted: int
    retracted_total: int
    prefix_tokens: int = 0
    prefix_hit_tokens: int = 0
