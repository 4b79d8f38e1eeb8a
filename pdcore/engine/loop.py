"""The loop of a rank: receive, plan, run, hand off, report; wait when there is nothing to do.

One thread turns it. Everything it calls returns at once except the model, so a peer that does not answer, a full
queue or a slow leader never holds up a step.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import zmq

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.engine.handoffs import Handoffs
from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.messages import Abort, Failed, HandedOff, Start, Stats, Step, Stop, ToLeader, ToRank
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.plan import Compute, StepPlan
from pdcore.engine.scheduler.request import Request
from pdcore.errors import ApiError

IDLE_WAIT_S: Final = 0.25
BEAT_INTERVAL_S: Final = 0.2
STATS_INTERVAL_S: Final = 0.1
STATUS_INTERVAL_S: Final = 1.0

_log = telemetry.logger(__name__)


class Model(Protocol):
    """What the loop needs of the model."""

    def run(self, batch: Sequence[Compute], starts: Sequence[Start]) -> dict[str, int]:
        """Compute ``batch`` (``starts`` are its requests, in order); the sampled token of each item that samples."""
        ...


@dataclass(slots=True)
class Counters:
    """Totals since the process started."""

    steps: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    handoffs_ok: int = 0
    handoffs_failed: int = 0
    inference_s: float = 0.0


class RankLoop:
    """``run`` turns until the leader says stop; ``turn`` is one step and blocks in the model only."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        pool: BlockPool,
        handoffs: Handoffs,
        model: Model,
        leader: LeaderLink,
        beat_fd: int | None,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._handoffs = handoffs
        self._model = model
        self._leader = leader
        self._beat_fd = beat_fd
        self._clock = clock
        self._counters = Counters()
        self._last_beat = float("-inf")
        self._last_stats: tuple[float, Stats | None] = (float("-inf"), None)
        self._last_status = (clock.now(), Counters())
        self._stopping = False
        self._traces = logging.getLogger().isEnabledFor(logging.DEBUG)

    def run(self) -> None:
        """Turn until the leader says stop; sleep on every socket that could bring work when there is none."""
        wake = _WakeUp()
        while not self._stopping:
            computed = self.turn()
            if not computed:
                most_s = min(IDLE_WAIT_S, self._handoffs.next_wake() - self._clock.now())
                wake.wait([self._leader.socket, *self._handoffs.pollables()], max(0.0, most_s))

    def turn(self) -> bool:
        """One step; whether something was computed."""
        now = self._clock.now()
        self._beat(now)
        for message in self._leader.receive():
            self._take(message, now)
        self._tell(self._handoffs.poll(now))
        plan = self._scheduler.plan(now)
        self._perform(plan, now)
        self._report(now, idle=not plan.batch)
        return bool(plan.batch)

    def _take(self, message: ToRank, now: float) -> None:
        match message:
            case Start():
                self._start(message, now)
            case Abort(request_id=request_id):
                self._handoffs.abort(request_id, now)
            case Stop():
                self._stopping = True

    def _start(self, start: Start, now: float) -> None:
        try:
            self._scheduler.add(start, now)
            try:
                self._handoffs.started(start, now)
            except ApiError:
                self._scheduler.abort(start.request_id)
                raise
        except ApiError as refused:
            self._leader.send(Failed(request_id=start.request_id, code=refused.code, message=refused.message))

    def _perform(self, plan: StepPlan, now: float) -> None:
        for failure in plan.fail:
            self._handoffs.give_up(failure)
            self._leader.send(
                Failed(request_id=failure.request_id, code=failure.code, message=failure.message)
            )
        self._tell(self._handoffs.admit(plan.admit, now))
        if plan.batch:
            self._compute(plan.batch)

    def _compute(self, batch: Sequence[Compute]) -> None:
        requests = [self._scheduler.held(item.request_id) for item in batch]
        if self._traces:
            self._trace_first_steps(requests)
        self._counters.prefill_tokens += sum(
            len(item.token_ids)
            for item, request in zip(batch, requests, strict=True)
            if not request.generating
        )
        began = self._clock.now()
        tokens = self._model.run(batch, [request.start for request in requests])
        outcome = self._scheduler.complete(batch, tokens)
        self._handoffs.send(outcome.handoffs)
        if outcome.outputs:
            self._leader.send(Step(outputs=outcome.outputs))
        self._counters.inference_s += self._clock.now() - began
        self._counters.steps += 1
        self._counters.output_tokens += len(tokens)

    def _trace_first_steps(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.generating and len(request.output) == 1:
                _log.debug("first decode step", room=request.start.room, request_id=request.request_id)

    def _tell(self, messages: Iterable[ToLeader]) -> None:
        for message in messages:
            match message:
                case HandedOff():
                    self._counters.handoffs_ok += 1
                case Step(outputs=outputs):
                    self._counters.handoffs_ok += len(outputs)
                case Failed():
                    self._counters.handoffs_failed += 1
            self._leader.send(message)

    def _beat(self, now: float) -> None:
        """Prove to the registrar that this loop turns. A full pipe means nobody reads, which is not our trouble."""
        if self._beat_fd is None or now - self._last_beat < BEAT_INTERVAL_S:
            return
        self._last_beat = now
        try:
            os.write(self._beat_fd, b"\0")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            _log.warning("registrar gone", consequence="beats stop until the leader restarts it")
            self._beat_fd = None

    def _report(self, now: float, *, idle: bool) -> None:
        at, last = self._last_stats
        if now - at < STATS_INTERVAL_S and not idle:
            return
        stats = self._stats()
        if stats != last:
            self._leader.send(stats)
            self._last_stats = (now, stats)
        if (
            now - self._last_status[0] >= STATUS_INTERVAL_S
            and self._counters.steps > self._last_status[1].steps
        ):
            self._log_status(now, stats)

    def _log_status(self, now: float, stats: Stats) -> None:
        at, before = self._last_status
        count = self._counters
        steps = count.steps - before.steps
        _log.info(
            "status",
            step=count.steps,
            batch=stats.running,
            inference_ms=round((count.inference_s - before.inference_s) / steps * 1000, 2),
            tokens_per_s=round((count.output_tokens - before.output_tokens) / (now - at), 1),
            kv=f"{stats.kv_blocks_used}/{stats.kv_blocks_total}",
            queues=f"{stats.queued}/{stats.transferring}/{stats.running}",
        )
        self._last_status = (now, _copy(count))

    def _stats(self) -> Stats:
        blocks = self._pool.statistics()
        queues = self._scheduler.statistics()
        handoffs = self._handoffs.gauges()
        count = self._counters
        return Stats(
            steps=count.steps,
            kv_blocks_total=blocks.total,
            kv_blocks_used=blocks.used + blocks.lingering,
            kv_blocks_quarantined=blocks.quarantined,
            slots_total=handoffs.slots_total,
            slots_used=handoffs.slots_used,
            rooms=handoffs.rooms,
            queued=queues.queued,
            running=queues.running,
            transferring=queues.transferring,
            handoffs_ok=count.handoffs_ok,
            handoffs_failed=count.handoffs_failed,
            prefill_tokens=count.prefill_tokens,
            output_tokens=count.output_tokens,
        )


def _copy(count: Counters) -> Counters:
    return Counters(steps=count.steps, output_tokens=count.output_tokens, inference_s=count.inference_s)


class _WakeUp:
    """Sleeps on a set of sockets that changes rarely."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._watched: list[int | zmq.Socket[bytes]] = []

    def wait(self, wanted: list[int | zmq.Socket[bytes]], most_s: float) -> None:
        if wanted != self._watched:
            for old in self._watched:
                self._poller.unregister(old)
            for new in wanted:
                self._poller.register(new, zmq.POLLIN)
            self._watched = wanted
        self._poller.poll(math.ceil(most_s * 1000))
