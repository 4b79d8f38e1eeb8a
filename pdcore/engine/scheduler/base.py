"""What the schedulers of all roles share: admission by blocks, batches, growth, retraction, endings.

The mutable state is ``_waiting`` (may compute, holds no blocks), ``_running`` (holds blocks for all it computes) and
the block pool; a subclass adds the places where a request waits for a peer. A request is in exactly one of them.

Blocks run out when running requests grow. Then one victim gives its blocks back, keeps its tokens and is recomputed
when there is room: the one with the fewest output tokens, of those the longest prompt, since it is the cheapest to
repeat for the space it frees (rule of the mission's section 6.4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.messages import Output, Start
from pdcore.engine.scheduler.plan import (
    Admit,
    Compute,
    Failure,
    Handoff,
    Outcome,
    SchedulerStatistics,
    StepPlan,
)
from pdcore.engine.scheduler.request import Request
from pdcore.errors import ApiError

MOST_RETRACTIONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """``reserved_tokens`` are kept free for each admitted request to grow; the others cap what is held at once."""

    block_size: int
    context_length: int
    max_batch: int
    max_prefill_tokens: int
    max_queue: int
    reserved_tokens: int
    slots: int


class Scheduler:
    """The part of a rank that decides. Call ``plan``, do what it says, then ``complete`` with the sampled tokens."""

    def __init__(self, limits: SchedulerLimits, pool: BlockPool) -> None:
        self._limits = limits
        self._pool = pool
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Request] = {}
        self._retracted_total = 0

    # what a role adds

    def _enqueue(self, request: Request) -> None:
        """Put a new request where its role makes it wait first."""
        self._waiting.append(request)

    def _elsewhere(self) -> Iterator[Request]:
        """Requests held in the role's own places."""
        return iter(())

    def _admit(self) -> tuple[Admit, ...]:
        """Move what fits into ``_running``; the role's own admissions are returned."""
        self._start_waiting()
        return ()

    def _sampled(self, request: Request, token: int, outcome: _Collecting) -> None:
        """``token`` was sampled for ``request``."""
        self._emit(request, token, outcome)

    def _drop(self, request: Request) -> bool:
        """Forget ``request`` wherever it is and let its blocks go; whether it was here."""
        if self._running.pop(request.request_id, None) is not None:
            self._pool.free(request.blocks)
            return True
        if request in self._waiting:
            self._waiting.remove(request)
            return True
        return False

    def _unexpired(self, request: Request, now: float) -> bool:
        return now < request.deadline

    # what the rank calls

    def add(self, start: Start, now: float) -> None:
        """Take a new request, or raise :class:`ApiError` and hold nothing."""
        self._refuse_what_cannot_run(start)
        held = tuple(self._held())
        if len(held) >= self._limits.max_queue:
            message = f"the engine holds {len(held)} requests, its limit; try again"
            raise ApiError("rate_limited", message, retry_after_s=1)
        if any(r.request_id == start.request_id for r in held):
            raise ApiError("room_in_use", f"request {start.request_id} is running already")
        if start.room and any(r.start.room == start.room for r in held):
            raise ApiError(
                "room_in_use", f"bootstrap_room {start.room} is running already", param="bootstrap_room"
            )
        self._enqueue(Request(start=start, deadline=now + start.remaining_ms / 1000))

    def abort(self, request_id: str) -> bool:
        """Nobody wants this request any more; whether it was held."""
        request = self.find(request_id)
        return request is not None and self._drop(request)

    def find(self, request_id: str) -> Request | None:
        """The held request of that id."""
        return self._running.get(request_id) or next(
            (r for r in self._held() if r.request_id == request_id), None
        )

    def held(self, request_id: str) -> Request:
        """The held request of that id; KeyError if there is none."""
        request = self.find(request_id)
        if request is None:
            raise KeyError(request_id)
        return request

    def plan(self, now: float) -> StepPlan:
        """What to do in this step."""
        failures = self._expire(now)
        admitted = self._admit()
        batch = self._batch(failures)
        return StepPlan(admit=admitted, batch=batch, fail=tuple(failures))

    def complete(self, batch: Iterable[Compute], tokens: Mapping[str, int]) -> Outcome:
        """Account for a computed ``batch``; ``tokens`` holds the sampled token of each item that samples.

        A request that left between plan and completion is skipped.
        """
        outcome = _Collecting()
        for item in batch:
            request = self._running.get(item.request_id)
            if request is None:
                continue
            request.computed = item.start + len(item.token_ids)
            if item.samples:
                self._sampled(request, tokens[item.request_id], outcome)
        return Outcome(outputs=tuple(outcome.outputs), handoffs=tuple(outcome.handoffs))

    @property
    def has_computation(self) -> bool:
        """Whether ``plan`` would find something to run or to admit without any new message."""
        return bool(self._running or self._waiting)

    def statistics(self) -> SchedulerStatistics:
        """Queue lengths of this instant."""
        return SchedulerStatistics(
            queued=len(self._waiting),
            transferring=0,
            running=len(self._running),
            retracted_total=self._retracted_total,
        )

    # shared decisions

    def _held(self) -> Iterator[Request]:
        yield from self._waiting
        yield from self._running.values()
        yield from self._elsewhere()

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)

    def _refuse_what_cannot_run(self, start: Start) -> None:
        length, context = len(start.prompt), self._limits.context_length
        if length == 0:
            raise ApiError("invalid_request", "prompt is empty: it has no tokens", param="prompt")
        if length >= context:
            message = f"this model's context is {context} tokens; the prompt has {length} and leaves no room to answer"
            raise ApiError("context_length_exceeded", message, param="prompt")
        if self._blocks_for(length + 1) > self._pool.total:
            capacity = self._pool.total * self._limits.block_size
            message = f"the KV cache holds {capacity} tokens; the prompt of {length} and one more do not fit"
            raise ApiError("context_length_exceeded", message, param="prompt")

    def _reserved(self) -> int:
        """Blocks that the admitted requests are expected to grow into."""
        return sum(
            self._blocks_for(
                min(self._limits.reserved_tokens, r.still_to_generate(self._limits.context_length))
            )
            for r in self._growing()
        )

    def _growing(self) -> Iterable[Request]:
        return self._running.values()

    def _fits(self, tokens: int) -> bool:
        """Whether ``tokens`` can be admitted beside the growth of everybody admitted before."""
        return self._blocks_for(tokens) <= self._pool.free_blocks - self._reserved()

    def _has_batch_room(self) -> bool:
        return len(self._running) < self._limits.max_batch

    def _admissible(self, tokens: int) -> bool:
        """Whether a request of ``tokens`` may have its blocks now.

        With nobody admitted before it, nobody's growth needs protecting: then its own blocks are enough.
        """
        idle = not any(True for _ in self._growing())
        return self._fits(tokens) or (idle and self._pool.can_allocate(self._blocks_for(tokens)))

    def _start_waiting(self) -> None:
        """Give blocks to waiting requests, oldest first; the first that does not fit holds the line."""
        while self._waiting and self._has_batch_room():
            request = self._waiting[0]
            needed = request.known + self._spare_tokens()
            if not self._admissible(needed):
                return
            self._waiting.popleft()
            self._give_blocks(request, needed)
            self._running[request.request_id] = request

    def _give_blocks(self, request: Request, tokens: int) -> None:
        blocks = self._pool.allocate(self._blocks_for(tokens), request.request_id)
        assert blocks is not None, "admitted without enough free blocks"
        request.blocks = blocks

    def _spare_tokens(self) -> int:
        """How many tokens beyond the known ones an admitted request gets blocks for."""
        return 1

    def _batch(self, failures: list[Failure]) -> tuple[Compute, ...]:
        budget = self._limits.max_prefill_tokens
        batch: dict[str, Compute] = {}
        for request in sorted(self._running.values(), key=lambda r: not r.generating):
            if request.request_id not in self._running:
                continue  # retracted for one before it
            if request.generating:
                if not self._make_room(request, batch, failures):
                    continue
                count = 1
            else:
                count = min(request.pending, budget)
                budget -= count
            if count:
                batch[request.request_id] = self._compute(request, count)
        return tuple(batch.values())

    def _compute(self, request: Request, count: int) -> Compute:
        start = request.computed
        return Compute(
            request_id=request.request_id,
            token_ids=request.tokens(start, count),
            start=start,
            block_table=request.blocks,
            samples=start + count == request.known,
        )

    def _make_room(self, request: Request, batch: dict[str, Compute], failures: list[Failure]) -> bool:
        """Blocks for every known token of ``request``, taking them from victims; False if it is one itself."""
        missing = self._blocks_for(request.known) - len(request.blocks)
        if missing <= 0:
            return True
        while not self._pool.can_allocate(missing):
            victim = min(
                (r for r in self._running.values() if r.generating),
                key=lambda r: (len(r.output), -len(r.start.prompt)),
            )
            batch.pop(victim.request_id, None)
            self._retract(victim, failures)
            if victim is request:
                return False
        more = self._pool.extend(missing, request.request_id)
        assert more is not None
        request.blocks += more
        return True

    def _retract(self, victim: Request, failures: list[Failure]) -> None:
        self._drop(victim)
        victim.blocks, victim.computed = (), 0
        victim.retractions += 1
        self._retracted_total += 1
        if self._blocks_for(victim.known + 1) > self._pool.total:
            capacity = self._pool.total * self._limits.block_size
            failures.append(
                self._failure(
                    victim,
                    "decode_failed",
                    f"abort_oom: {victim.known} tokens outgrew the KV cache of {capacity}",
                )
            )
        elif victim.retractions > MOST_RETRACTIONS:
            failures.append(
                self._failure(
                    victim,
                    "backend_unavailable",
                    f"preempted_oom: retracted {victim.retractions} times for lack of KV blocks",
                )
            )
        else:
            self._waiting.append(victim)

    def _expire(self, now: float) -> list[Failure]:
        late = [r for r in self._held() if not self._unexpired(r, now)]
        for request in late:
            self._drop(request)
        return [
            self._failure(r, "deadline_exceeded", "the request's time budget ran out in the engine")
            for r in late
        ]

    @staticmethod
    def _failure(request: Request, code: object, message: str) -> Failure:
        return Failure(request_id=request.request_id, room=request.start.room, code=code, message=message)  # type: ignore[arg-type]

    def _emit(self, request: Request, token: int, outcome: _Collecting) -> None:
        """Append ``token``, tell the leader, and end the request if that completes it."""
        request.output.append(token)
        reason = request.finish_reason(self._limits.context_length)
        outcome.outputs.append(
            Output(request_id=request.request_id, token_ids=(token,), finish_reason=reason)
        )
        if reason is not None:
            self._drop(request)


class _Collecting:
    """An outcome while a batch is being accounted for."""

    __slots__ = ("handoffs", "outputs")

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.handoffs: list[Handoff] = []
