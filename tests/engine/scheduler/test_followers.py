"""Ranks that only execute what the DP leader sends: the same blocks everywhere, and never a foreign byte in one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from pdcore.engine.consensus import DecodeConsensus
from pdcore.engine.handoffs import DecodeHandoffs, Effect
from pdcore.engine.messages import Failed, Step
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.step_link import StepOrders
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    Arrived,
    DecodeEvent,
    Drained,
    HandoffFailed,
    Open,
    Order,
)
from pdcore.topology.keys import RankPosition
from tests.engine.scheduler import simulation
from tests.engine.scheduler.follower import Follower
from tests.engine.scheduler.simulation import groups, limits, next_token
from tests.engine.scheduler.world import prefill

pytestmark = pytest.mark.unit

SIZES = (4, 2)
MOST_BEHIND = 3


class Executor:
    """One rank of the group. Its peers write when they like; it learns of everything by step orders alone."""

    def __init__(self, position: RankPosition, dice: random.Random) -> None:
        self.position = position
        self.follower = Follower(SIZES)
        self.unread: deque[bytes] = deque()
        self._names: dict[int, str] = {}
        self._open: dict[int, Open] = {}
        self._over: dict[int, Open] = {}
        self._dice = dice
        self._decoder = msgspec.msgpack.Decoder(StepOrders)

    def catch_up(self, behind: int) -> None:
        while len(self.unread) > behind:
            step = self._decoder.decode(self.unread.popleft())
            for order in step.orders:
                self._obey(order)
            self.follower.execute(step.batch)

    def events(self) -> Iterator[DecodeEvent]:
        """What its sources did: whole, failed, or, when nobody wants it any more, whatever they like until drained."""
        for order in list(self._open.values()):
            roll = self._dice.random()
            if roll < 0.3:
                del self._open[order.handoff]
                self.follower.arrive(f"r{order.room}", order.blocks, order.prompt_len)
                yield Arrived(handoff=order.handoff, first_token=42, kv_len=order.prompt_len)
            elif roll < 0.33:
                self._over[order.handoff] = self._open.pop(order.handoff)
                yield HandoffFailed(handoff=order.handoff, code="prefill_failed", message="no")
        for order in list(self._over.values()):
            self.follower.arrive("another's bytes", order.blocks, order.prompt_len)
            if self._dice.random() < 0.2:
                del self._over[order.handoff]
                yield Drained(handoff=order.handoff)

    def _obey(self, order: Order) -> None:
        match order:
            case Open(handoff=handoff):
                self._open[handoff] = order
            case AbortHandoff(handoff=handoff) if handoff in self._open:
                self._over[handoff] = self._open.pop(handoff)
            case AbortHandoff():
                pass


class Group:
    """A DP leader's decisions and its ranks, of which all but the first lag behind."""

    def __init__(self, ranks: int, seed: int) -> None:
        self.dice = random.Random(seed)
        self.blocks = groups(12, *SIZES)
        bounds = limits(max_batch=5, slots=8, reserved_tokens=2, peer_share=0.5)
        self.scheduler = DecodeScheduler(bounds, self.blocks)
        positions = [RankPosition(0, 0, tp) for tp in range(ranks)]
        self.handoffs = DecodeHandoffs(self.scheduler, DecodeConsensus(positions), 2**31)
        self.ranks = [Executor(position, self.dice) for position in positions]
        self.encoder = msgspec.msgpack.Encoder()
        self.orders: list[Order] = []
        self.ends: list[str] = []
        self.asked = 0
        self.now = 0.0

    def turn(self, number: int, *, busy: bool) -> None:
        self.now += 0.01
        if busy:
            self._clients()
        for rank in self.ranks:
            for event in rank.events():
                self._do(self.handoffs.hear(rank.position, event))
        plan = self.scheduler.plan(self.now)
        for failure in plan.fail:
            self.ends.append(failure.request_id)
            self._do(self.handoffs.give_up(failure))
        self._do(self.handoffs.admit(plan.admit, self.now))
        frame = self.encoder.encode(StepOrders(number=number, orders=tuple(self.orders), batch=plan.batch))
        self.orders = []
        for index, rank in enumerate(self.ranks):
            rank.unread.append(frame)
            rank.catch_up(self.dice.randint(0, MOST_BEHIND) if index and busy else 0)
        tokens = {item.request_id: next_token(item) for item in plan.batch if item.samples}
        outcome = self.scheduler.complete(plan.batch, tokens)
        self.ends += [o.request_id for o in outcome.outputs if o.finish_reason]

    def _clients(self) -> None:
        if self.dice.random() < 0.4 and self.scheduler.statistics().prealloc < 4:
            self.asked += 1
            name = f"r{self.asked}"
            start = simulation.start(
                name, self.dice.randint(1, 15), max_tokens=self.dice.randint(1, 8), room=self.asked
            )
            self.scheduler.add(msgspec.structs.replace(start, prefill=prefill("p0")), self.now)
        if self.dice.random() < 0.05 and self.scheduler._requests:
            name = self.dice.choice(list(self.scheduler._requests))
            self.ends.append(name)
            self._do(self.handoffs.abort(name))

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Step(outputs=outputs):
                    self.ends += [o.request_id for o in outputs if o.finish_reason]
                case Failed(request_id=name):
                    self.ends.append(name)
                case Open() | AbortHandoff():
                    self.orders.append(effect)


def run(steps: int, ranks: int, seed: int) -> Group:
    """So many steps under load, then as many as it takes to be idle."""
    group = Group(ranks, seed)
    for number in range(1, steps + 1):
        group.turn(number, busy=True)
    for number in range(steps + 1, steps + 500):
        if not group.scheduler._requests and group.blocks.free_blocks == group.blocks.total:
            break
        group.turn(number, busy=False)
    return group


def check(group: Group) -> None:
    assert group.blocks.free_blocks == group.blocks.total, group.blocks
    assert sorted(group.ends) == sorted(f"r{number}" for number in range(1, group.asked + 1)), (
        "each ends once"
    )
    first, *others = group.ranks
    for rank in others:
        rank.catch_up(0)
        assert rank.follower.tables == first.follower.tables
    assert len(first.follower.tables) > group.asked // 4


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_lag_behind_have_the_same_blocks_and_only_their_own_bytes(ranks: int) -> None:
    check(run(600, ranks, seed=ranks))


@pytest.mark.cluster
def test_two_ranks_agree_for_ten_thousand_steps() -> None:
    group = run(10_000, 2, seed=1)
    check(group)
    print(f"\n{group.asked} requests, {group.scheduler.statistics().retracted_total} retracted")
