"""What the schedulers of all roles share: admission by blocks, batches, growth, retraction, endings.

A request is in exactly one place (``places``). A subclass adds what happens before and after it computes: it overrides
``_enqueue``, ``_judge``, ``_enter``, ``_sampled`` and ``_let_go``.

Blocks run out when running requests grow. Then one victim gives its blocks back, keeps its tokens and is recomputed
when there is room: the one with the fewest output tokens, of those the longest prompt, since it is the cheapest to
repeat for the space it frees (rule of the mission's section 6.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add, sub
from typing import Final

from pdcore.engine.kv.block_groups import BlockGroups, within
from pdcore.engine.kv.blocks import Counts
from pdcore.engine.messages import Output, Start
from pdcore.engine.scheduler.chunks import share_with_recomputed
from pdcore.engine.scheduler.deadlines import Deadlines
from pdcore.engine.scheduler.fitting import refuse_what_cannot_run
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.line import Line, Verdict
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.plan import (
    Compute,
    Failure,
    Handoff,
    Outcome,
    PlanInMaking,
    SchedulerStatistics,
    StepPlan,
)
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.engine.scheduler.request import Request
from pdcore.errors import ApiError, ErrorCode

MOST_RETRACTIONS: Final = 3
RETRY_ADMISSION_S: Final = 0.1
"""Waiting requests are looked at so often even if nothing moved, because some of the rules know time."""


class Scheduler:
    """The part of a rank that decides. Call ``plan``, do what it says, then ``complete`` with the sampled tokens.
    Without ``prefixes`` every request computes all of its tokens.

    Instants only grow. Mutable besides the parts: ``_requests`` and ``_rooms`` (all held), ``_running``, ``_places``
    (how many are where), ``_available`` (what admission may still give in this plan), ``_tried`` (what it had left
    when that was tried last, and when), ``_moved`` (whether a request moved since), ``_plan`` (the plan so far).
    """

    def __init__(
        self, limits: SchedulerLimits, blocks: BlockGroups, prefixes: Prefixes | None = None
    ) -> None:
        self._limits = limits
        self._blocks = blocks
        self._prefixes = prefixes
        self._now = 0.0
        self._requests: dict[str, Request] = {}
        self._rooms: dict[int, Request] = {}
        self._running: dict[str, Request] = {}
        self._line = Line()
        self._deadlines = Deadlines()
        self._places: Counter[Place] = Counter()
        self._available: Counts = blocks.free_blocks
        self._tried: tuple[Counts, float] = (blocks.free_blocks, 0.0)
        self._moved = False
        self._plan = PlanInMaking()
        self._retracted_total = 0

    # what the rank calls

    def add(self, start: Start, now: float) -> None:
        """Take a new request, or raise :class:`ApiError` and hold nothing."""
        self._now = now
        self._refuse(start)
        request = self._enqueue(start, now + start.remaining_ms / 1000)
        self._places[request.place] += 1
        self._moved = True
        self._requests[start.request_id] = request
        self._deadlines.add(start.request_id, request.deadline)
        if start.room:
            self._rooms[start.room] = request

    def abort(self, request_id: str) -> bool:
        """Nobody wants this request any more; whether it was held."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request)
        return request is not None

    def find(self, request_id: str) -> Request | None:
        """The held request of that id."""
        return self._requests.get(request_id)

    def held(self, request_id: str) -> Request:
        """The held request of that id; KeyError if there is none."""
        return self._requests[request_id]

    def of(self, batch: Iterable[Compute]) -> list[Request]:
        """The held requests of a planned ``batch``, in its order."""
        requests = self._requests
        return [requests[item.request_id] for item in batch]

    def plan(self, now: float) -> StepPlan:
        """What to do in this step."""
        self._now = now
        self._plan = making = PlanInMaking()
        for request_id in self._deadlines.due(now):
            self._fail(
                self._requests[request_id],
                "deadline_exceeded",
                "the request's time budget ran out in the engine",
            )
        batch: tuple[Compute, ...] = ()
        failed = -1
        while not batch and failed != len(making.fail):  # a failure makes room for somebody
            failed = len(making.fail)
            self._admit()
            batch = self._batch()
        return self._finished(batch)

    def complete(self, batch: Iterable[Compute], tokens: Mapping[str, int]) -> Outcome:
        """Account for a computed ``batch``; ``tokens`` holds the sampled token of each item that samples.

        A request that left meanwhile is skipped. ``settle`` follows, once what this returns is on its way."""
        outputs: list[Output] = []
        handoffs: list[Handoff] = []
        running = self._running
        for item in batch:
            request_id = item.request_id
            request = running.get(request_id)
            if request is None:
                continue
            request.computed = item.start + len(item.token_ids)
            self._remember(request)
            if item.samples:
                result = self._sampled(request, tokens[request_id])
                if isinstance(result, Output):
                    outputs.append(result)
                else:
                    handoffs.append(result)
        return Outcome(outputs=tuple(outputs), handoffs=tuple(handoffs))

    def settle(self) -> None:
        """Do what ``complete`` left because nobody waits for it."""

    @property
    def has_computation(self) -> bool:
        """Whether ``plan`` would find something to run or to admit without any new message."""
        return bool(self._running or len(self._line))

    def statistics(self) -> SchedulerStatistics:
        """Counts of this instant."""
        count = self._places
        return SchedulerStatistics(
            bootstrap=count[Place.BOOTSTRAP],
            prealloc=count[Place.PREALLOC],
            transfer=count[Place.TRANSFER],
            running=count[Place.RUNNING],
            retracted=count[Place.RETRACTED],
            retracted_total=self._retracted_total,
            prefix_tokens=0 if self._prefixes is None else self._prefixes.asked,
            prefix_hit_tokens=0 if self._prefixes is None else self._prefixes.reused,
        )

    # what a role changes

    def _enqueue(self, start: Start, deadline: float) -> Request:
        """A new request, where its role makes it wait first."""
        request = self._new(start, deadline, Place.PREALLOC)
        self._wait(request)
        return request

    def _judge(self, request: Request) -> Verdict:
        """Whether a request that waits for blocks may have them now."""
        if not self._has_batch_room() or min(self._available) < 1:
            return Verdict.CLOSED
        return Verdict.FITS if within(request.needed, self._available) else Verdict.TOO_LARGE

    def _has_batch_room(self) -> bool:
        return len(self._running) < self._limits.max_batch

    def _enter(self, request: Request) -> None:
        """A request that was judged to fit gets its blocks."""
        self._give_blocks(request)
        self._run(request)

    def _first_tokens(self, request: Request) -> int:
        """How many tokens a request gets blocks for at first."""
        return request.known + 1

    def _growing(self) -> Iterable[Request]:
        """Those who have blocks and will need more."""
        return self._running.values()

    def _is_worth_holding(self, request: Request) -> bool:
        """Whether a request that does not fit would, if all that computes came to its end."""
        left = tuple(map(sub, self._blocks.total, self._stuck()))
        return within(request.needed, left)

    def _stuck(self) -> Counts:
        """Blocks that do not come back by computing."""
        return (0,) * len(self._blocks.total)

    def _sampled(self, request: Request, token: int) -> Output | Handoff:
        """``token`` was sampled for a running request."""
        return self._emit(request, token)

    def _remember(self, request: Request) -> None:
        """More of ``request`` is computed than was."""
        if self._prefixes is not None:
            self._prefixes.computed(request)

    def _let_go(self, request: Request) -> None:
        """A request ends outside of line and batch."""
        raise AssertionError(f"nobody looks after {request.place.name}")

    def _refuse(self, start: Start) -> None:
        """ApiError for a request that cannot be taken now, or ever."""
        refuse_what_cannot_run(start, self._limits.context_length, self._blocks.tokens)
        if len(self._requests) >= self._limits.max_queue:
            message = f"the engine holds {len(self._requests)} requests, its limit; try again"
            raise ApiError("rate_limited", message, retry_after_s=1)
        if start.request_id in self._requests:
            raise ApiError("room_in_use", f"request {start.request_id} is running already")
        if start.room and start.room in self._rooms:
            raise ApiError(
                "room_in_use", f"bootstrap_room {start.room} is running already", param="bootstrap_room"
            )

    def _admit(self) -> None:
        """Let waiting requests in, unless nothing has happened since that was tried last."""
        if not len(self._line):
            return
        self._available = tuple(map(sub, self._blocks.free_blocks, self._growth_of(self._growing())))
        tried, at = self._tried
        if not self._moved and within(self._available, tried) and self._now - at < RETRY_ADMISSION_S:
            return
        self._line.serve(
            self._now, judge=self._judge, enter=self._enter, is_worth_holding=self._is_worth_holding
        )
        self._tried, self._moved = (self._available, self._now), False

    def _finished(self, batch: tuple[Compute, ...]) -> StepPlan:
        """The plan, with what the role adds at its end."""
        return self._plan.finished(batch)

    # shared decisions

    def _new(self, start: Start, deadline: float, place: Place) -> Request:
        return Request(
            start=start, deadline=deadline, context_length=self._limits.context_length, place=place
        )

    def _move(self, request: Request, place: Place) -> None:
        self._places[request.place] -= 1
        request.move(place)
        self._places[place] += 1
        self._moved = True

    def _wait(self, request: Request) -> None:
        request.needed = self._blocks.needed(self._first_tokens(request))
        self._line.join(request, self._now)

    def _run(self, request: Request) -> None:
        self._move(request, Place.RUNNING)
        self._running[request.request_id] = request

    def _end(self, request: Request) -> None:
        """Forget a request wherever it is, and let go of what it holds."""
        match request.place:
            case Place.RUNNING:
                del self._running[request.request_id]
                self._blocks.free_owner(request.request_id)
            case Place.PREALLOC | Place.RETRACTED:
                self._line.leave(request)
            case _:
                self._let_go(request)
        self._move(request, Place.ENDED)
        del self._requests[request.request_id]
        self._deadlines.cancel(request.request_id)
        if request.start.room:
            del self._rooms[request.start.room]

    def _fail(self, request: Request, code: ErrorCode, message: str) -> None:
        self._plan.fail.append(
            Failure(
                request_id=request.request_id,
                room=request.start.room,
                code=code,
                message=message,
                handoff=request.handoff,
            )
        )
        self._end(request)

    def _growth_of(self, requests: Iterable[Request]) -> Counts:
        most = self._limits.reserved_tokens
        ahead = [min(most, r.most_known - r.known) for r in requests]
        return tuple(sum([-(-tokens // size) for tokens in ahead]) for size in self._blocks.block_sizes)

    def _give_blocks(self, request: Request) -> None:
        """Blocks for the first tokens of a request; it and its growth are available to nobody else."""
        found = () if self._prefixes is None else self._prefixes.find(request)
        blocks = self._blocks.allocate(request.needed, request.request_id, found)
        assert blocks is not None, "admitted without enough free blocks"
        request.blocks = blocks
        if self._prefixes is not None:
            self._prefixes.take(request, found)
        request.capacity = self._blocks.room_in(request.needed)
        taken = map(add, request.needed, self._growth_of((request,)))
        self._available = tuple(map(sub, self._available, taken))

    def _batch(self) -> tuple[Compute, ...]:
        """Who generates goes first; prompts share the tokens of the step."""
        batch: dict[str, Compute] = {}
        chunked: list[Request] = []
        running = Place.RUNNING  # each look-up of an enum's member, and each call, counts: there are many
        for request_id, request in tuple(self._running.items()):
            if request.place is not running:
                continue  # retracted for one before it
            if request.known - request.computed != 1 or not request.output:
                chunked.append(request)
            elif request.known <= request.capacity or self._grow(request, batch):
                batch[request_id] = Compute(
                    request_id=request_id,
                    token_ids=(request.output[-1],),
                    start=request.computed,
                    block_tables=request.blocks,
                    samples=True,
                )
        if chunked:
            self._add_chunks([r for r in chunked if r.place is Place.RUNNING], batch)
        return tuple(batch.values())

    def _add_chunks(self, requests: list[Request], batch: dict[str, Compute]) -> None:
        fresh = [r for r in requests if not r.output]
        again = [r for r in requests if r.output]
        shares = share_with_recomputed(
            [r.pending for r in fresh], [r.pending for r in again], self._limits.max_prefill_tokens
        )
        for request, count in zip((*fresh, *again), (*shares[0], *shares[1]), strict=True):
            self._plan.prompt_tokens += count
            if count:
                start = request.computed
                batch[request.request_id] = Compute(
                    request_id=request.request_id,
                    token_ids=request.tokens(start, count),
                    start=start,
                    block_tables=request.blocks,
                    samples=start + count == request.known,
                )

    def _grow(self, request: Request, batch: dict[str, Compute]) -> bool:
        """Blocks for every known token of ``request``, taking them from victims; False if it is one itself."""
        needed = self._blocks.needed(request.known)
        missing = tuple(max(0, n - len(ids)) for n, ids in zip(needed, request.blocks, strict=True))
        while (more := self._blocks.extend(missing, request.request_id)) is None:
            victim = min(self._running.values(), key=lambda r: (len(r.output), -len(r.start.prompt)))
            batch.pop(victim.request_id, None)
            self._retract(victim)
            if victim is request:
                return False
        request.blocks = tuple(map(add, request.blocks, more))
        request.capacity = self._blocks.room_in(tuple(map(len, request.blocks)))
        return True

    def _retract(self, victim: Request) -> None:
        """It waits to be computed once more, unless that can never be, or has been too often."""
        victim.retractions += 1
        if not within(self._blocks.needed(victim.known + 1), self._blocks.total):
            message = f"{victim.known} tokens outgrew the KV cache of {self._blocks.tokens}"
            self._fail(victim, "abort_oom", message)
        elif victim.retractions > MOST_RETRACTIONS:
            message = f"retracted {victim.retractions} times for lack of KV blocks; try again"
            self._fail(victim, "preempted_oom", message)
        else:
            self._retracted_total += 1
            del self._running[victim.request_id]
            self._blocks.free_owner(victim.request_id)
            victim.give_back()
            self._move(victim, Place.RETRACTED)
            self._wait(victim)

    def _emit(self, request: Request, token: int) -> Output:
        """Append ``token``, and end the request if that completes it."""
        reason = request.append(token)
        if reason is not None:
            self._end(request)
        return Output(
            request_id=request.request_id,
            token_ids=(token,),
            finish_reason=reason,
            cached_tokens=request.cached if len(request.output) == 1 else 0,
        )
