"""One forward pass over a mixed batch: decode tokens and prompt chunks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdcore.engine.kv.pool import KvPool
from pdcore.engine.model import attention
from pdcore.engine.model.causal import CausalModel


@dataclass(frozen=True, slots=True)
class Slice:
    """Compute ``token_ids`` at positions ``start``, ``start + 1`` …; keys and values of all earlier positions are in
    the pool, in the blocks of ``block_table``, which also has room for the new ones."""

    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token_ids)


class ModelRunner:
    """Runs one model. Not for use from several threads at once."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model

    @torch.inference_mode()
    def forward(self, batch: Sequence[Slice], pool: KvPool) -> Tensor:
        """float32 logits ``[len(batch), vocab]`` at each slice's last token, in the batch's order.

        Keys and values of all its tokens are in the pool afterwards. ValueError when a slice is empty or its block
        table too short; nothing was written then.
        """
        if not batch or not all(len(part) for part in batch):
            raise ValueError("a batch needs at least one slice, and a slice at least one token")
        model, device = self._model, self._model.device
        plan = attention.plan(batch, pool, device)
        ordered = [batch[i] for i in plan.order]
        token_ids = torch.tensor([token for part in ordered for token in part.token_ids], device=device)
        positions = torch.cat([torch.arange(part.start, part.start + len(part)) for part in ordered])

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return attention.attend(plan, pool, layer, queries, keys, values)

        hidden = model.hidden(token_ids, positions.to(device), attend)
        return model.logits(hidden[_last_rows(batch, plan.order).to(device)])


def _last_rows(batch: Sequence[Slice], order: Sequence[int]) -> Tensor:
    """For each slice of ``batch``, the row its last token has when slices lie in ``order``."""
    ends = torch.tensor([len(batch[i]) for i in order]).cumsum(0) - 1
    rows = torch.empty(len(batch), dtype=torch.long)
    rows[torch.tensor(order)] = ends
    return rows
