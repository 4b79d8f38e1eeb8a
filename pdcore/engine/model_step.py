"""One step's computation: planned items in, sampled tokens out. The only place where a plan meets tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from pdcore.engine.kv.pool import KvPool
from pdcore.engine.model.logit_rules import obeyed
from pdcore.engine.model.progress import NOBODY_ASKS, Progress
from pdcore.engine.model.runner import ModelRunner, Slice
from pdcore.engine.model.sampling import log_probabilities, sample
from pdcore.engine.sampled import Sampled
from pdcore.engine.scheduler.plan import Compute
from pdcore.engine.scheduler.request import Request
from pdcore.engine.transfer.orders import TokenLogprobs


class ModelStep:
    """Runs batches of one model over one pool: ``run`` on the DP leader, ``follow`` on the other ranks of its group.

    All of them are given the same batches in the same order.
    """

    def __init__(self, runner: ModelRunner, pool: KvPool) -> None:
        self._runner = runner
        self._pool = pool

    def run(self, batch: Sequence[Compute], requests: Sequence[Request], progress: Progress) -> Sampled:
        """The next token of each item that samples; its position is the one after the item's last token.

        CollectiveFailed when another rank died or stands still: nothing can be computed any more.
        """
        logits = self._runner.forward(_slices(batch), self._pool, progress)
        rows = [row for row, item in enumerate(batch) if item.samples]
        if not rows:
            return Sampled({}, {})
        logits = logits if len(rows) == len(batch) else logits[rows]
        sampling = [requests[row] for row in rows]
        tokens = sample(
            obeyed(logits, sampling),
            [request.start.sampling for request in sampling],
            [batch[row].start + len(batch[row].token_ids) for row in rows],
        )
        chosen = dict(zip([request.request_id for request in sampling], tokens, strict=True))
        return Sampled(chosen, _logprobs(logits, sampling, chosen))

    def follow(self, batch: Sequence[Compute], progress: Progress = NOBODY_ASKS) -> None:
        """This rank's part of what the DP leader runs; raises as ``run``."""
        self._runner.follow(_slices(batch), self._pool, progress)


def _logprobs(
    logits: Tensor, requests: Sequence[Request], chosen: Mapping[str, int]
) -> dict[str, TokenLogprobs]:
    asked = [
        (row, request.request_id, top)
        for row, request in enumerate(requests)
        if (top := request.start.sampling.top_logprobs) is not None
    ]
    if not asked:
        return {}
    rows, ids, tops = zip(*asked, strict=True)
    of = logits if len(rows) == len(requests) else logits[list(rows)]
    return dict(zip(ids, log_probabilities(of, [chosen[name] for name in ids], tops), strict=True))


def _slices(batch: Sequence[Compute]) -> list[Slice]:
    return [Slice(item.token_ids, item.start, item.block_tables) for item in batch]
