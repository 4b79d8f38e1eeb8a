"""Greedy generation straight on a runner: a dumb continuous batch, with blocks handed out in shuffled order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from pdcore.engine import device
from pdcore.engine.collective import Groups
from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.kv.region import pool_bytes
from pdcore.engine.model import loader
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.runner import ModelRunner, Slice
from pdcore.engine.model.shard import Shard

BLOCK_SIZE = 8


class PagedModel:
    """A model, or the shard of one rank of ``groups``, on the CPU.

    Untouched memory of its pool is NaN, so that reading any of it shows. Ranks hand out the same blocks.
    """

    def __init__(
        self, directory: Path, *, blocks: int = 256, dtype: str = "float32", groups: Groups | None = None
    ) -> None:
        groups = groups or Groups.single()
        self.config = ModelConfig.from_directory(directory)
        shard = Shard(tp=groups.tp.rank, tp_size=groups.tp.size)
        layout = self.config.kv_layout(BLOCK_SIZE, dtype).shard(shard.tp_size, shard.tp)
        model = loader.load(directory, self.config, device.select("cpu"), dtype, shard=shard)
        self.runner = ModelRunner(model, groups)
        counts = (blocks,) * len(layout.groups)
        self.memory = bytearray(b"\xff" * pool_bytes(layout, counts))
        self.pool = KvPool(layout, counts, self.memory)
        self._free = [list(range(blocks)) for _ in counts]
        for number, ids in enumerate(self._free):
            random.Random(7 + number).shuffle(ids)

    def table(self, tokens: int) -> BlockLists:
        """Blocks of each group that nobody else has, enough for ``tokens``."""
        return tuple(
            tuple(ids.pop() for _ in range(group.blocks_for(tokens)))
            for ids, group in zip(self._free, self.pool.layout.groups, strict=True)
        )

    def greedy(self, prompts: Sequence[Sequence[int]], most: int, chunk: int = 16) -> list[list[int]]:
        """New tokens of each prompt, all in one changing batch; the end-of-text token is included."""
        sequences = [list(prompt) for prompt in prompts]
        tables = [self.table(len(prompt) + most) for prompt in prompts]
        done = [0] * len(prompts)
        running = list(range(len(prompts)))
        while running:
            batch = [
                Slice(tuple(sequences[i][done[i] : done[i] + chunk]), done[i], tables[i]) for i in running
            ]
            best = self.runner.forward(batch, self.pool).argmax(dim=-1).tolist()
            for i, part, token in zip(running, batch, best, strict=True):
                done[i] += len(part)
                if done[i] == len(sequences[i]):
                    sequences[i].append(token)
            running = [i for i in running if not self._ended(sequences[i], len(prompts[i]), most)]
        return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]

    def _ended(self, sequence: Sequence[int], prompt: int, most: int) -> bool:
        made = len(sequence) - prompt
        return made == most or (made > 0 and sequence[-1] in self.config.eos_token_ids)
