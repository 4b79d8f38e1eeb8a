"""The engine without its processes: scheduler, cache and model, turned as a rank's loop turns them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from bench.models.sizes import weight_bytes
from pdcore.engine import device
from pdcore.engine.kv.block_groups import BlockGroup, BlockGroups
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.kv.region import pool_bytes
from pdcore.engine.messages import Limits, Output, Sampling, Start
from pdcore.engine.model import loader
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.progress import NOBODY_ASKS
from pdcore.engine.model.runner import ModelRunner
from pdcore.engine.model_step import ModelStep
from pdcore.engine.scheduler.limits import SchedulerLimits
from pdcore.engine.scheduler.prefixes import Prefixes
from pdcore.engine.scheduler.unified import UnifiedScheduler

BLOCK_SIZE: Final = 16
KV_TOKENS: Final = 32768
PREFILL_TOKENS: Final = 512
_names: Final = count()


@dataclass
class Ours:
    """One model, loaded once. ``max_batch`` is the most sequences of a step."""

    directory: Path
    max_batch: int = 32
    config: ModelConfig = field(init=False)
    scheduler: UnifiedScheduler = field(init=False)

    def __post_init__(self) -> None:
        self.config = ModelConfig.from_directory(self.directory)
        layout = self.config.kv_layout(BLOCK_SIZE, "float32")
        blocks = (KV_TOKENS // BLOCK_SIZE,)
        model = loader.load(self.directory, self.config, device.select("cpu"), "float32")
        pool = KvPool(layout, blocks, bytearray(pool_bytes(layout, blocks)))
        self._model = ModelStep(ModelRunner(model), pool)
        self._groups = BlockGroups(BlockGroup(block_size=BLOCK_SIZE, blocks=blocks[0]))
        self.scheduler = UnifiedScheduler(self._limits(), self._groups, Prefixes(self._groups))

    def add(self, prompt: Sequence[int], tokens: int) -> str:
        """A new request that ends after ``tokens``; its name."""
        name = f"r{next(_names)}"
        start = Start(
            request_id=name,
            room=0,
            prompt=tuple(prompt),
            sampling=Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0),
            limits=Limits(max_tokens=tokens, stop_token_ids=(), ignore_eos=True),
            remaining_ms=3_600_000,
        )
        self.scheduler.add(start, time.monotonic())
        return name

    def step(self) -> Sequence[Output]:
        """One step; what came of it."""
        batch = self.scheduler.plan(time.monotonic()).batch
        requests = [self.scheduler.held(item.request_id) for item in batch]
        return self.scheduler.complete(batch, self._model.run(batch, requests, NOBODY_ASKS).tokens).outputs

    @property
    def busy(self) -> bool:
        """Whether there is anything left to compute."""
        return self.scheduler.has_computation

    def finish(self) -> int:
        """Until nothing is left; how many tokens that made."""
        made = 0
        while self.busy:
            made += len(self.step())
        return made

    def until_first_tokens(self, names: Sequence[str]) -> None:
        """Step until every one of them has a token."""
        waiting = set(names)
        while waiting:
            waiting -= {output.request_id for output in self.step()}

    def step_bytes(self, sequences: int, context: int) -> int:
        """Bytes of weights and KV that a step of single tokens has to read: a tied embedding counts once."""
        config = self.config
        kv = 2 * config.layers * config.kv_heads * config.head_dim * context * sequences
        return weight_bytes(config, of_a_step=True) + 4 * kv

    def _limits(self) -> SchedulerLimits:
        return SchedulerLimits(
            context_length=self.config.context_length,
            max_batch=self.max_batch,
            max_prefill_tokens=PREFILL_TOKENS,
            max_queue=4096,
            reserved_tokens=16,
            slots=64,
        )
