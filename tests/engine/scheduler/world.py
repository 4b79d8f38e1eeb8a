"""A rank without a machine: a scheduler of any role, its peers, and what they may do to it at any time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from pdcore.engine.kv.block_groups import BlockGroup, BlockGroups
from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.decode import DecodeScheduler
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.plan import Ahead, EndPeer, Outcome
from pdcore.engine.scheduler.prefill import PrefillScheduler
from pdcore.engine.scheduler.request import Request
from pdcore.engine.scheduler.unified import UnifiedScheduler
from pdcore.engine.transfer.orders import PrefillGroup
from pdcore.errors import ApiError
from tests.engine.scheduler.simulation import Simulation, limits, start

Role = Literal["unified", "prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = ("unified", "prefill", "decode")
SCHEDULERS: Final[dict[Role, type[Scheduler]]] = {
    "unified": UnifiedScheduler,
    "prefill": PrefillScheduler,
    "decode": DecodeScheduler,
}
STEP_S: Final = 0.01


@dataclass(slots=True)
class Transfer:
    """KV under way to decode, or from prefill; ``over``: nobody waits for it any more, but it may still be written.
    ``whole`` unless more of it is computed."""

    key: int  # the hand-off, or the room
    request_id: str
    blocks: BlockLists
    kv_len: int
    peer: str = ""
    over: bool = False
    whole: bool = True


class World:
    """Requests come, peers answer or not; after every step the books are balanced.

    ``gone`` are requests that somebody aborted or that the peer gave up: the world told the leader itself.
    """

    def __init__(
        self,
        role: Role,
        *,
        blocks: int = 8,
        block_sizes: Sequence[int] = (4,),
        limits: SchedulerLimits | None = None,
        per_chunk: bool = False,
    ) -> None:
        self.role = role
        self.blocks = BlockGroups(*(BlockGroup(block_size=size, blocks=blocks) for size in block_sizes))
        self.scheduler = SCHEDULERS[role](limits or LIMITS, self.blocks)
        if role == "prefill":
            self.scheduler = PrefillScheduler(
                limits or LIMITS, self.blocks, per_chunk=per_chunk, early=per_chunk
            )
        self.simulation = Simulation(self.scheduler, self.blocks)
        self.accepted: dict[str, int] = {}
        self.gone: Counter[str] = Counter()
        self.handshakes: list[int] = []
        self.transfers: dict[int, Transfer] = {}
        self.ended_peers: list[EndPeer] = []
        self.restart: str | None = None
        self.rooms = 0

    @property
    def now(self) -> float:
        return self.simulation.now

    # what may happen

    def arrive(
        self, prompt: int, max_tokens: int = 4, *, peer: str = "p0", remaining_ms: int = 3_600_000
    ) -> str | None:
        """A new request, or None if it is refused."""
        self.rooms += 1
        name, room = f"r{self.rooms}", 0 if self.role == "unified" else self.rooms
        message = start(name, prompt, max_tokens=max_tokens, room=room, remaining_ms=remaining_ms)
        if self.role == "decode":
            message = msgspec.structs.replace(message, prefill=prefill(peer))
        try:
            self.scheduler.add(message, self.now)
        except ApiError:
            return None
        self.accepted[name] = max_tokens
        if self.role == "prefill":
            self.handshakes.append(room)
        return name

    def handshake(self, index: int = 0) -> None:
        """Prefill: decode asks for a room."""
        if isinstance(self.scheduler, PrefillScheduler) and self.handshakes:
            self.scheduler.handshaken(self.handshakes.pop(index % len(self.handshakes)))

    def deliver(self, key: int) -> None:
        """The write of a transfer is complete, whoever still waits for it."""
        if not self.transfers[key].whole:
            return
        transfer = self.transfers.pop(key)
        if isinstance(self.scheduler, DecodeScheduler):
            self.simulation.follower.arrive(transfer.request_id, transfer.blocks, transfer.kv_len)
            arrived = self.scheduler.arrived(key, 42, transfer.kv_len)
            assert (arrived is None) == transfer.over
            if arrived is not None:
                output = arrived[1]
                self.simulation.note(output.request_id, output.token_ids, output.finish_reason)
        else:
            assert isinstance(self.scheduler, PrefillScheduler)
            self.scheduler.write_ended(key)
            if self.scheduler.sent(key) is not None:
                self.simulation.ends[transfer.request_id] += 1
                self.simulation.finished[transfer.request_id] = "sent"

    def fail(self, key: int) -> None:
        """The peer gives a transfer up; a write may still be under way."""
        transfer = self.transfers[key]
        assert isinstance(self.scheduler, DecodeScheduler | PrefillScheduler)
        request = self.scheduler.failed(key)
        assert (request is None) == transfer.over
        if request is not None:
            self.gone[request.request_id] += 1
        transfer.over = True

    def drain(self, key: int) -> None:
        """No write of a transfer that is over can land any more."""
        transfer = self.transfers[key]
        if transfer.over:
            del self.transfers[key]
            if isinstance(self.scheduler, DecodeScheduler):
                assert self.scheduler.drained(key) is None
            elif isinstance(self.scheduler, PrefillScheduler):
                self.scheduler.write_ended(key)

    def scribble(self) -> None:
        """Every write whose end is not known lands now."""
        if self.role == "decode":
            for transfer in self.transfers.values():
                self.simulation.follower.arrive("another's bytes", transfer.blocks, transfer.kv_len)

    def abort(self, name: str) -> None:
        """The client leaves."""
        if self.scheduler.abort(name):
            self.gone[name] += 1
            self._note_over(name)

    def step(self, seconds: float = STEP_S, *, check: bool = True) -> Outcome:
        """A turn of the rank."""
        self.simulation.now += seconds
        plan = self.scheduler.plan(self.now)
        for item in plan.admit:
            request = self.scheduler.held(item.request_id)
            assert request.peer is not None
            self.transfers[item.handoff] = Transfer(
                item.handoff,
                item.request_id,
                item.blocks,
                len(request.start.prompt),
                request.peer[0],
            )
        for failure in plan.fail:
            assert (failure.handoff is not None) == (failure.handoff in self.transfers)
            self._note_over(failure.request_id)
        for part in plan.ahead:
            assert part.computed <= self.scheduler._rooms[part.room].computed < part.kv_len
            self._send_ahead(part)
        for part in plan.completing:
            assert part.computed == part.kv_len
            self._send_ahead(part)
        complete = {self.scheduler.held(item.request_id).start.room for item in plan.batch if item.samples}
        self.ended_peers += plan.end_peers
        self.restart = plan.restart
        outcome = self.simulation.perform(plan)
        if isinstance(self.scheduler, PrefillScheduler) and self.scheduler._early:
            assert {part.room for part in plan.completing} == complete
        for handoff in outcome.handoffs:
            assert handoff.first == (handoff.room not in self.transfers)
            self.transfers[handoff.room] = Transfer(
                handoff.room, handoff.request_id, handoff.blocks, handoff.kv_len
            )
        if check:
            self.check()
        return outcome

    def _send_ahead(self, part: Ahead) -> None:
        """A part of the prompt of a request that runs is written from now on."""
        request = self.scheduler._rooms[part.room]
        assert request.place is Place.RUNNING
        assert 0 < part.computed <= part.kv_len == request.known
        assert part.first == (part.room not in self.transfers)
        self.transfers[part.room] = Transfer(
            part.room, request.request_id, part.blocks, part.kv_len, whole=False
        )

    def settle(self, most_steps: int = 5000) -> None:
        """Let every peer answer and every request end; then nothing may be left anywhere."""
        for number in range(most_steps):
            while self.handshakes:
                self.handshake()
            for key in list(self.transfers):
                (self.drain if self.transfers[key].over else self.deliver)(key)
            if not self.scheduler._requests:
                break
            self.step(check=number % 8 == 0)
        else:
            raise AssertionError(f"{self.scheduler.statistics()} after {most_steps} steps, {self.blocks!r}")
        self.step(self.scheduler._limits.backlog_s + 1)
        assert self.simulation.empty, self.blocks
        assert not (isinstance(self.scheduler, DecodeScheduler) and self.scheduler._capped), "an old grudge"
        for name, most in self.accepted.items():
            assert self.simulation.ends[name] + self.gone[name] == 1, f"{name} ended not once"
            if self.simulation.finished.get(name) == "length":
                assert len(self.simulation.tokens[name]) == most

    # what must hold at any time

    def check(self) -> None:
        """The books: every block in one hand, every request in one place, every count what it says."""
        requests = self.scheduler._requests.values()
        held = Counter((g, b) for r in requests for g, ids in enumerate(r.blocks) for b in ids)
        assert not [block for block, hands in held.items() if hands > 1], "a block in two hands"
        for group, statistics in enumerate(self.blocks.group_statistics()):
            assert sum(g == group for g, _ in held) == statistics.used
            parts = (statistics.free, statistics.used, statistics.quarantined, statistics.lingering)
            assert sum(parts) == statistics.total
        places = Counter(r.place for r in requests)
        counts = self.scheduler.statistics()
        assert (places[Place.PREALLOC], places[Place.RUNNING]) == (counts.prealloc, counts.running)
        assert (places[Place.TRANSFER], places[Place.RETRACTED]) == (counts.transfer, counts.retracted)
        assert places[Place.BOOTSTRAP] == counts.bootstrap
        assert places[Place.ENDED] == 0
        for request in requests:
            self._check_request(request)

    def _check_request(self, request: Request) -> None:
        holds = request.place in (Place.RUNNING, Place.TRANSFER)
        assert bool(request.blocks) == holds
        assert request.capacity == (self.blocks.room_in(tuple(map(len, request.blocks))) if holds else 0)
        assert request.known == len(request.start.prompt) + len(request.output)
        if request.place is Place.RUNNING:
            assert request.computed < request.known <= request.capacity + 1

    def _note_over(self, name: str) -> None:
        for transfer in self.transfers.values():
            if transfer.request_id == name:
                transfer.over = True


LIMITS: Final = limits(max_batch=6, slots=8)


def prefill(instance_id: str) -> PrefillGroup:
    return PrefillGroup(
        instance_id=instance_id, incarnation="i1", dp=0, dp_size=1, cp_size=1, tp_size=1, ranks=()
    )


def live(
    world: World, dice: random.Random, turns: int, events: Sequence[Callable[[World, random.Random], None]]
) -> None:
    """Let random things happen, a step after each."""
    for _ in range(turns):
        dice.choice(events)(world, dice)
        world.step()


def _arrive(world: World, dice: random.Random) -> None:
    deadline = dice.choice([3_600_000, 3_600_000, 300])
    world.arrive(
        dice.randint(1, 34), dice.choice([1, 3, 9, 30]), peer=dice.choice(["p0", "p1"]), remaining_ms=deadline
    )


def _answer(world: World, dice: random.Random) -> None:
    world.handshake(dice.randrange(100))
    if world.transfers:
        key = dice.choice(list(world.transfers))
        dice.choice([world.deliver, world.deliver, world.fail, world.drain])(key)


def _leave(world: World, dice: random.Random) -> None:
    if world.scheduler._requests:
        world.abort(dice.choice(list(world.scheduler._requests)))


EVENTS: Final = (
    _arrive,
    _arrive,
    _arrive,
    _answer,
    _answer,
    _answer,
    _leave,
    lambda world, _: world.scribble(),
)
