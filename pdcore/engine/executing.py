"""The loop of a rank that does not decide: obey each step of its DP leader in sequence, report what happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pdcore.clock import Clock
from pdcore.engine.leader_link import LeaderLink
from pdcore.engine.loop import IDLE_WAIT_S, WakeUp
from pdcore.engine.model.progress import Progress
from pdcore.engine.reporting import Beats, Figures, side_stats
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.sides import Side
from pdcore.engine.step_link import StepFollower, StepOrders
from pdcore.engine.under_way import UnderWay


class FollowedModel(Protocol):
    """What this loop needs of the model."""

    def follow(self, batch: Sequence[Compute], progress: Progress) -> None:
        """This rank's share of ``batch``, together with the other ranks of the group."""
        ...


class ExecutorLoop:
    """``run`` turns until the DP leader says stop; ``turn`` is at most one step and blocks in the model only."""

    def __init__(
        self,
        *,
        side: Side,
        group: StepFollower,
        model: FollowedModel,
        leader: LeaderLink,
        beats: Beats,
        clock: Clock,
    ) -> None:
        self._side = side
        self._group = group
        self._model = model
        self._beats = beats
        self._clock = clock
        self._figures = Figures(leader)
        self._steps = 0
        self._stopping = False

    def run(self) -> None:
        """Turn until told to stop; sleep when there is nothing to do."""
        wake = WakeUp()
        while not self._stopping:
            if not self.turn():
                most_s = min(IDLE_WAIT_S, self._side.next_wake() - self._clock.now())
                wake.wait((self._group.socket, *self._side.pollables()), max(0.0, most_s))

    def turn(self) -> bool:
        """At most one step; whether there was one."""
        now = self._clock.now()
        self._beats.beat(now)
        step = self._group.receive()
        if step is not None:
            self._execute(step, now)
        events = self._side.poll(self._clock.now())
        if events:
            self._group.report(events)
        if self._figures.is_due(now, idle=step is None and self._side.next_wake() > now):
            self._figures.tell(side_stats(self._steps, self._side.gauges()), now)
        return step is not None

    def _execute(self, step: StepOrders, now: float) -> None:
        for order in step.orders:
            self._side.obey(order, now)
        if step.batch:
            self._model.follow(step.batch, UnderWay(self._side, self._clock, step.completing))
            self._steps += 1
        self._stopping = step.stop
