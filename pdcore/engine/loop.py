"""The loop of a DP leader: receive, plan, order, compute, report; wait when there is nothing to do.

One thread turns it. Everything it calls returns at once except the model, so a peer that does not answer, a full
queue or a slow leader never holds up a step. Its group's other ranks turn
:class:`~pdcore.engine.executing.ExecutorLoop`; with none of them the group's link says nothing.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import zmq

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine.handoffs import Effect, Handoffs
from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.messages import (
    Abort,
    EndPeer,
    Failed,
    HandedOff,
    Restart,
    Start,
    Stats,
    Step,
    Stop,
    ToLeader,
    ToRank,
)
from pdcore.engine.model.progress import Progress
from pdcore.engine.reporting import Beats, Counters, Figures, StatusLine, side_stats
from pdcore.engine.sampled import Sampled, with_logprobs
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.plan import Compute, Handoff, StepPlan
from pdcore.engine.scheduler.request import Request
from pdcore.engine.sides import Side
from pdcore.engine.step_link import StepLeader
from pdcore.engine.transfer.orders import Order, SendAhead, SideEvent
from pdcore.engine.under_way import UnderWay
from pdcore.errors import ApiError
from pdcore.topology.keys import RankPosition

IDLE_WAIT_S: Final = 0.25

_log = telemetry.logger(__name__)


class Model(Protocol):
    """What the loop needs of the model."""

    def run(self, batch: Sequence[Compute], requests: Sequence[Request], progress: Progress) -> Sampled:
        """Compute ``batch`` (``requests`` are its requests, in order), and sample for each item that samples. The KV of
        every item is in memory when this returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider:
    """What decides: the scheduler, its blocks, and what hand-offs make of it."""

    scheduler: Scheduler
    blocks: BlockGroups
    handoffs: Handoffs


class RankLoop:
    """``run`` turns until the leader says stop; ``turn`` is one step and blocks in the model only.

    Mutable: ``_orders`` (not broadcast yet), ``_sent`` (this turn has handed off), ``_counters``, ``_stopping``,
    ``_restart`` (said already).
    """

    def __init__(
        self,
        rank: RankPosition,
        decider: Decider,
        *,
        side: Side,
        group: StepLeader,
        model: Model,
        leader: LeaderLink,
        beats: Beats,
        clock: Clock,
    ) -> None:
        self._rank = rank
        self._scheduler = decider.scheduler
        self._blocks = decider.blocks
        self._handoffs = decider.handoffs
        self._side = side
        self._group = group
        self._model = model
        self._leader = leader
        self._beats = beats
        self._clock = clock
        self._orders: list[Order] = []
        self._counters = Counters()
        self._figures = Figures(leader)
        self._status = StatusLine(clock)
        self._stopping = False
        self._sent = False
        self._restart: str | None = None
        self._traces = logging.getLogger().isEnabledFor(logging.DEBUG)

    def run(self) -> None:
        """Turn until the leader says stop; sleep on every socket that could bring work when there is none."""
        wake = WakeUp()
        while not self._stopping:
            computed = self.turn()
            if not computed:
                most_s = min(IDLE_WAIT_S, self._side.next_wake() - self._clock.now())
                sockets = (self._leader.socket, *self._group.pollables(), *self._side.pollables())
                wake.wait(sockets, max(0.0, most_s))
        self._group.broadcast(stop=True)

    def turn(self) -> bool:
        """One step; whether something was computed."""
        now = self._clock.now()
        for message in self._leader.receive():
            self._take(message, now)
        for rank, event in self._events(now):
            self._do(self._handoffs.hear(rank, event))
        plan = self._scheduler.plan(now)
        self._announce(plan, now)
        completing = tuple(self._handoffs.send_ahead(plan.completing))
        self._order(plan.batch, now, completing)
        if plan.batch:
            self._compute(plan.batch, completing)
            self._counters.prefill_tokens += plan.prompt_tokens
        self._beats.beat(now)  # last: it wakes another process
        self._report(now, idle=not plan.batch and self._side.next_wake() > now)
        return bool(plan.batch)

    def _take(self, message: ToRank, now: float) -> None:
        match message:
            case Start():
                self._start(message, now)
            case Abort(request_id=request_id):
                self._do(self._handoffs.abort(request_id))
            case Stop():
                self._stopping = True

    def _start(self, start: Start, now: float) -> None:
        try:
            self._scheduler.add(start, now)
            try:
                self._do(self._handoffs.started(start))
            except ApiError:
                self._scheduler.abort(start.request_id)
                raise
        except ApiError as refused:
            self._leader.send(Failed(request_id=start.request_id, code=refused.code, message=refused.message))

    def _events(self, now: float) -> Iterator[tuple[RankPosition, SideEvent]]:
        for event in self._side.poll(now):
            yield self._rank, event
        yield from self._group.receive()

    def _announce(self, plan: StepPlan, now: float) -> None:
        """Everything in ``plan`` that is not computing."""
        self._do(self._handoffs.send_ahead(plan.ahead))
        for failure in plan.fail:
            self._do(self._handoffs.give_up(failure))
            self._leader.send(
                Failed(request_id=failure.request_id, code=failure.code, message=failure.message)
            )
        self._do(self._handoffs.admit(plan.admit, now))
        for peer in plan.end_peers:
            self._leader.send(
                EndPeer(instance_id=peer.instance_id, incarnation=peer.incarnation, age_s=peer.age_s)
            )
        if plan.restart is not None and plan.restart != self._restart:
            self._restart = plan.restart
            self._leader.send(Restart(why=plan.restart))

    def _order(self, batch: Sequence[Compute], now: float, completing: Sequence[SendAhead] = ()) -> None:
        """Give the whole group its next step, and obey it as one of them."""
        orders, self._orders = self._orders, []
        if orders or batch:
            self._group.broadcast(orders, batch, completing)
        for order in orders:
            self._side.obey(order, now)

    def _compute(self, batch: Sequence[Compute], completing: Sequence[SendAhead]) -> None:
        requests = self._scheduler.of(batch)
        firsts = [r for r in requests if r.generating and len(r.output) == 1] if self._traces else []
        began = self._clock.now()
        sampled = self._model.run(batch, requests, UnderWay(self._side, self._clock, completing))
        ended = self._clock.now()
        outcome = with_logprobs(self._scheduler.complete(batch, sampled.tokens), sampled.logprobs)
        self._do(self._handoffs.send(outcome.handoffs))
        self._order((), ended)
        self._sent = bool(outcome.handoffs)
        if self._sent:
            os.sched_yield()  # to a decode rank that they woke, where CPUs are few
        if outcome.outputs:
            self._leader.send(Step(outputs=outcome.outputs))
        self._scheduler.settle()
        self._counters.inference_s += ended - began
        self._counters.steps += 1
        self._counters.output_tokens += len(sampled.tokens)
        if self._traces:
            self._trace(firsts, began, outcome.handoffs, ended)

    def _trace(
        self, firsts: Sequence[Request], began: float, handoffs: Sequence[Handoff], ended: float
    ) -> None:
        """Both ends of a hand-off, said once nobody waits for this rank; ``at`` is when it was."""
        for handoff in handoffs:
            _log.debug("prefill done", room=handoff.room, request_id=handoff.request_id, at=ended)
        for request in firsts:
            _log.debug("first decode step", room=request.start.room, request_id=request.request_id, at=began)

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Order):
                self._orders.append(effect)
            else:
                self._tell(effect)

    def _tell(self, message: ToLeader) -> None:
        match message:
            case HandedOff():
                self._counters.handoffs_ok += 1
            case Step(outputs=outputs):
                self._counters.handoffs_ok += len(outputs)
            case Failed():
                self._counters.handoffs_failed += 1
        self._leader.send(message)

    def _report(self, now: float, *, idle: bool) -> None:
        line = self._status.is_due(now, self._counters)
        sent, self._sent = self._sent, False
        if sent or not (line or self._figures.is_due(now, idle=idle)):
            return  # a message wakes the leader just when decode is to be woken
        stats = self._stats()
        self._figures.tell(stats, now)
        if line:
            self._status.log(now, self._counters, stats)

    def _stats(self) -> Stats:
        blocks = self._blocks.statistics()
        places = self._scheduler.statistics()
        count = self._counters
        return msgspec.structs.replace(
            side_stats(count.steps, self._side.gauges()),
            kv_blocks_total=blocks.total,
            kv_blocks_used=blocks.used + blocks.lingering,
            kv_blocks_cached=blocks.cached,
            kv_blocks_quarantined=blocks.quarantined,
            bootstrap=places.bootstrap,
            prealloc=places.prealloc,
            transfer=places.transfer,
            running=places.running,
            retracted=places.retracted,
            retracted_total=places.retracted_total,
            prefix_tokens=places.prefix_tokens,
            prefix_hit_tokens=places.prefix_hit_tokens,
            handoffs_ok=count.handoffs_ok,
            handoffs_failed=count.handoffs_failed,
            prefill_tokens=count.prefill_tokens,
            output_tokens=count.output_tokens,
        )


class WakeUp:
    """Sleeps on a set of sockets that changes rarely."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._watched: tuple[int | zmq.Socket[bytes], ...] = ()

    def wait(self, wanted: tuple[int | zmq.Socket[bytes], ...], most_s: float) -> None:
        """Return when one of ``wanted`` is readable, or after ``most_s``; for 0 only let others have the CPU."""
        if wanted != self._watched:
            for old in self._watched:
                self._poller.unregister(old)
            for new in wanted:
                self._poller.register(new, zmq.POLLIN)
            self._watched = wanted
        if not most_s:
            os.sched_yield()  # to whoever computes what this rank stays awake for, where CPUs are few
        self._poller.poll(math.ceil(most_s * 1000))
