"""One forward pass over a mixed batch: decode tokens and prompt chunks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdcore.engine.collective import Groups
from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.model import attention
from pdcore.engine.model.attention import Scores
from pdcore.engine.model.attention_plan import plan
from pdcore.engine.model.causal import CausalModel
from pdcore.engine.model.progress import NOBODY_ASKS, Progress


@dataclass(frozen=True, slots=True)
class Slice:
    """Compute ``token_ids`` at positions ``start``, ``start + 1`` …; keys and values of all earlier positions are in
    the pool, in the blocks of ``block_tables``, one for each KV group, which also have room for the new ones."""

    token_ids: tuple[int, ...]
    start: int
    block_tables: BlockLists

    def __len__(self) -> int:
        return len(self.token_ids)


class ModelRunner:
    """Runs one model, or its shard together with the other ranks of ``groups``. Not for use from several threads.

    Every rank runs the same batches in the same order, over pools with the same block ids.
    """

    def __init__(self, model: CausalModel, groups: Groups | None = None) -> None:
        self._model = model
        self._groups = groups or Groups.single()

    @torch.inference_mode()
    def forward(self, batch: Sequence[Slice], pool: KvPool, progress: Progress = NOBODY_ASKS) -> Tensor:
        """float32 logits ``[len(batch), vocab]`` at each slice's last token, in the batch's order.

        Keys and values of all its tokens are in the pool afterwards. ValueError when a slice is empty or a block table
        too short; nothing was written then. CollectiveFailed when another rank died or stands still.
        """
        hidden, last = self._run(batch, pool, progress)
        if last is None:
            raise ValueError("only the first context parallel rank computes every last token")
        return self._model.logits(hidden[last])

    @torch.inference_mode()
    def follow(self, batch: Sequence[Slice], pool: KvPool, progress: Progress = NOBODY_ASKS) -> None:
        """This rank's part of a forward pass whose logits another rank wants; raises as ``forward``."""
        self._run(batch, pool, progress)

    def _run(self, batch: Sequence[Slice], pool: KvPool, progress: Progress) -> tuple[Tensor, Tensor | None]:
        if not batch or not all(len(part) for part in batch):
            raise ValueError("a batch needs at least one slice, and a slice at least one token")
        model, groups = self._model, self._groups
        planned = plan(batch, pool, model.device, groups.cp)
        token_ids = [
            token for run in planned.runs for token in batch[run.index].token_ids[run.first : run.stop]
        ]

        def attend(layer: int, queries: Tensor, rows: Sequence[Tensor], scores: Scores) -> Tensor:
            attention.store(planned, pool, layer, rows, groups.cp)
            if layer == len(model.layers) - 1:
                progress.stored()
            return attention.attend(planned, pool, layer, queries, rows, scores)

        tokens = torch.tensor(token_ids, device=model.device)
        hidden = model.hidden(tokens, planned.positions, attend, groups.tp.all_reduce)
        progress.layers_done()
        return hidden, planned.last
