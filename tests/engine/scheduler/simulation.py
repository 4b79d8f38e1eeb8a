"""A model that costs nothing: drives a scheduler step by step and checks its books and its memory after each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pdcore.engine.kv.block_groups import BlockGroup, BlockGroups
from pdcore.engine.messages import Limits, Sampling, Start
from pdcore.engine.scheduler.base import Scheduler
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.plan import Compute, Failure, Outcome, StepPlan
from tests.engine.scheduler.follower import Follower

STOP_TOKEN = 7


def limits(
    *,
    context_length: int = 256,
    max_batch: int = 16,
    max_prefill_tokens: int = 8,
    max_queue: int = 1000,
    reserved_tokens: int = 4,
    slots: int = 16,
    peer_share: float = 1.0,
    total_share: float = 1.0,
) -> SchedulerLimits:
    return SchedulerLimits(
        context_length=context_length,
        max_batch=max_batch,
        max_prefill_tokens=max_prefill_tokens,
        max_queue=max_queue,
        reserved_tokens=reserved_tokens,
        slots=slots,
        peer_share=peer_share,
        total_share=total_share,
    )


def groups(blocks: int, *block_sizes: int) -> BlockGroups:
    """So many blocks in each of the groups, of 4 tokens when nothing else is said."""
    return BlockGroups(*(BlockGroup(block_size=size, blocks=blocks) for size in block_sizes or (4,)))


def start(
    name: str,
    prompt: int | Sequence[int] = 5,
    *,
    max_tokens: int = 4,
    room: int = 0,
    remaining_ms: int = 60_000,
    ignore_eos: bool = False,
) -> Start:
    ids = tuple(range(100, 100 + prompt)) if isinstance(prompt, int) else tuple(prompt)
    return Start(
        request_id=name,
        room=room,
        prompt=ids,
        sampling=Sampling(temperature=0, top_p=1, top_k=0, seed=0),
        limits=Limits(max_tokens=max_tokens, stop_token_ids=(STOP_TOKEN,), ignore_eos=ignore_eos),
        remaining_ms=remaining_ms,
    )


def next_token(item: Compute) -> int:
    """A token that depends on everything before it, as far as the item shows."""
    return 1000 + (item.start + len(item.token_ids)) % 500


class Simulation:
    """Runs a scheduler whose model answers ``next_token``; remembers what left it."""

    def __init__(self, scheduler: Scheduler, blocks: BlockGroups) -> None:
        self.scheduler = scheduler
        self.blocks = blocks
        self.follower = Follower(blocks.block_sizes)
        self.now = 0.0
        self.failures: list[Failure] = []
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.ends: Counter[str] = Counter()

    def step(self) -> Outcome:
        return self.perform(self.scheduler.plan(self.now))

    def perform(self, plan: StepPlan) -> Outcome:
        for failure in plan.fail:
            self.failures.append(failure)
            self.ends[failure.request_id] += 1
        assert not {f.request_id for f in plan.fail} & {item.request_id for item in plan.batch}
        for item in plan.batch:
            known = (
                *self.scheduler.held(item.request_id).start.prompt,
                *self.tokens.get(item.request_id, ()),
            )
            assert item.token_ids == known[item.start : item.start + len(item.token_ids)]
            assert item.samples == (item.start + len(item.token_ids) == len(known))
        self.follower.execute(plan.batch)
        outcome = self.scheduler.complete(
            plan.batch, {item.request_id: next_token(item) for item in plan.batch if item.samples}
        )
        self.scheduler.settle()
        for output in outcome.outputs:
            self.note(output.request_id, output.token_ids, output.finish_reason)
        return outcome

    def note(self, request_id: str, token_ids: Sequence[int], finish_reason: str | None) -> None:
        """The leader hears this of a request."""
        assert not self.ends[request_id], f"{request_id} speaks after its end"
        self.tokens.setdefault(request_id, []).extend(token_ids)
        if finish_reason:
            self.finished[request_id] = finish_reason
            self.ends[request_id] += 1

    @property
    def empty(self) -> bool:
        """Whether nothing holds any block."""
        return self.blocks.free_blocks == self.blocks.total
