"""One step's computation: planned items in, sampled tokens out. The only place where a plan meets tensors."""

from __future__ import annotations

from collections.abc import Sequence

from pdcore.engine.kv.pool import KvPool
from pdcore.engine.messages import Start
from pdcore.engine.model.runner import ModelRunner, Slice
from pdcore.engine.model.sampling import sample
from pdcore.engine.scheduler.plan import Compute


class ModelStep:
    """Runs batches of one model over one pool."""

    def __init__(self, runner: ModelRunner, pool: KvPool) -> None:
        self._runner = runner
        self._pool = pool

    def run(self, batch: Sequence[Compute], starts: Sequence[Start]) -> dict[str, int]:
        """The next token of each item that samples; its position is the one after the item's last token."""
        slices = [
            Slice(token_ids=item.token_ids, start=item.start, block_table=item.block_table) for item in batch
        ]
        logits = self._runner.forward(slices, self._pool)
        rows = [row for row, item in enumerate(batch) if item.samples]
        if not rows:
            return {}
        tokens = sample(
            logits[rows],
            [starts[row].sampling for row in rows],
            [batch[row].start + len(batch[row].token_ids) for row in rows],
        )
        return {batch[row].request_id: token for row, token in zip(rows, tokens, strict=True)}
