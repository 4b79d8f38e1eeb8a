"""MLPs of which each token runs through a few, and who chooses them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.families import ClampedGate, ExpertsConfig
from pdcore.engine.model.layers import GatedMlp, Linear, gated

_NOT_NOTHING = 1e-20


@dataclass(frozen=True, slots=True)
class Router:
    """Chooses experts by scores. ``scorer`` computes in the dtype of its weight; ``correction`` is ``[experts]``."""

    config: ExpertsConfig
    scorer: Linear
    correction: Tensor | None = None

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's weights (float32) and experts, ``[tokens, per_token]`` both."""
        config = self.config
        logits = self.scorer(inputs.to(self.scorer.weight.dtype)).float()
        scores = logits.softmax(dim=-1) if config.scoring == "softmax" else logits.sigmoid()
        judged = scores if self.correction is None else scores + self.correction
        if config.groups > 1:
            judged = self._in_best_groups(judged)
        chosen = judged.topk(config.per_token, dim=-1).indices
        weights = scores.gather(1, chosen)
        if config.normalised:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + _NOT_NOTHING)
        return weights * config.scale, chosen

    def _in_best_groups(self, judged: Tensor) -> Tensor:
        """Scores outside the best groups become hopeless. A corrected group counts by its best two, else by its best."""
        grouped = judged.view(len(judged), self.config.groups, -1)
        best = 1 if self.correction is None else min(2, grouped.shape[-1])
        kept = grouped.topk(best, dim=-1).values.sum(dim=-1).topk(self.config.groups_kept, dim=-1).indices
        others = torch.ones(grouped.shape[:2], dtype=torch.bool, device=judged.device).scatter_(
            1, kept, False
        )
        return grouped.masked_fill(others.unsqueeze(-1), float("-inf")).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """``gate_up`` is ``[experts, 2 * intermediate, hidden]``, gate above up; ``down`` ``[experts, hidden, intermediate]``.

    Every token also runs through ``shared``, where there is one.
    """

    router: Router
    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    clamped: ClampedGate | None = None
    shared: GatedMlp | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        weights, chosen = self.router(inputs)
        per_token = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)  # by expert: each computes one run of rows
        tokens = order // per_token
        counts = torch.bincount(chosen.flatten(), minlength=len(self.gate_up)).tolist()
        made = self._each(inputs[tokens], counts) * weights.flatten()[order, None]
        result = torch.zeros_like(inputs) if self.shared is None else self.shared(inputs)
        return result.index_add_(0, tokens, made.to(inputs.dtype))

    def _each(self, rows: Tensor, counts: list[int]) -> Tensor:
        """What every expert makes of its ``counts`` of the rows, which lie expert after expert."""
        parts = []
        begin = 0
        for expert, count in enumerate(counts):
            if count:
                parts.append(self._one(expert, rows[begin : begin + count]))
                begin += count
        return torch.cat(parts)

    def _one(self, expert: int, rows: Tensor) -> Tensor:
        bias = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        middle = gated(F.linear(rows, self.gate_up[expert], bias), self.clamped)
        return F.linear(middle, self.down[expert], None if self.down_bias is None else self.down_bias[expert])
