"""One step's computation: planned items in, sampled tokens out. The only place where a plan meets tensors."""

from __future__ import annotations

from collections.abc import Sequence

from pdcore.engine.kv.pool import KvPool
from pdcore.engine.messages import Start
from pdcore.engine.model.runner import ModelRunner, Slice
from pdcore.engine.model.sampling import sample
from pdcore.engine.scheduler.plan import Compute


class ModelStep:
    """Runs batches of one model over one pool: ``run`` on the DP leader, ``follow`` on the other ranks of its group.

    All of them are given the same batches in the same order.
    """

    def __init__(self, runner: ModelRunner, pool: KvPool) -> None:
        self._runner = runner
        self._pool = pool

    def run(self, batch: Sequence[Compute], starts: Sequence[Start]) -> dict[str, int]:
        """The next token of each item that samples; its position is the one after the item's last token.

        CollectiveFailed when another rank died or stands still: nothing can be computed any more.
        """
        logits = self._runner.forward(_slices(batch), self._pool)
        rows = [row for row, item in enumerate(batch) if item.samples]
        if not rows:
            return {}
        tokens = sample(
            logits if len(rows) == len(batch) else logits[rows],
            [starts[row].sampling for row in rows],
            [batch[row].start + len(batch[row].token_ids) for row in rows],
        )
        return {batch[row].request_id: token for row, token in zip(rows, tokens, strict=True)}

    def follow(self, batch: Sequence[Compute]) -> None:
        """This rank's part of what the DP leader runs; raises as ``run``."""
        self._runner.follow(_slices(batch), self._pool)


def _slices(batch: Sequence[Compute]) -> list[Slice]:
    """Dense attention has one KV group."""
    return [Slice(item.token_ids, item.start, item.block_tables[0]) for item in batch]
