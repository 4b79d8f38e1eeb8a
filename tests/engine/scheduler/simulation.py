"""A model that costs nothing: drives a scheduler step by step and checks its books after each one."""

from __future__ import annotations

from collections.abc import Sequence

from pdcore.engine.kv.blocks import BlockPool
from pdcore.engine.messages import Limits, Sampling, Start
from pdcore.engine.scheduler.base import Scheduler, SchedulerLimits
from pdcore.engine.scheduler.plan import Compute, Failure, Outcome, StepPlan

STOP_TOKEN = 7


def limits(
    *,
    block_size: int = 4,
    context_length: int = 256,
    max_batch: int = 16,
    max_prefill_tokens: int = 8,
    max_queue: int = 1000,
    reserved_tokens: int = 4,
    slots: int = 16,
) -> SchedulerLimits:
    return SchedulerLimits(
        block_size=block_size,
        context_length=context_length,
        max_batch=max_batch,
        max_prefill_tokens=max_prefill_tokens,
        max_queue=max_queue,
        reserved_tokens=reserved_tokens,
        slots=slots,
    )


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

    def __init__(self, scheduler: Scheduler, pool: BlockPool, block_size: int = 4) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.block_size = block_size
        self.now = 0.0
        self.failures: list[Failure] = []
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.written: dict[int, tuple[str, int]] = {}

    def step(self) -> Outcome:
        return self.perform(self.scheduler.plan(self.now))

    def perform(self, plan: StepPlan) -> Outcome:
        self.failures += plan.fail
        self._check(plan.batch)
        outcome = self.scheduler.complete(
            plan.batch, {item.request_id: next_token(item) for item in plan.batch if item.samples}
        )
        for output in outcome.outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason:
                self.finished[output.request_id] = output.finish_reason
        return outcome

    def _check(self, batch: Sequence[Compute]) -> None:
        seen: set[int] = set()
        for item in batch:
            assert item.token_ids, "an empty computation"
            last = item.start + len(item.token_ids) - 1
            assert last // self.block_size < len(item.block_table), "a token without a block"
            assert not seen & set(item.block_table), "two requests share a block"
            seen |= set(item.block_table)
