"""The computation of a decoder-only language model; families differ in what their layers are made of.

Projections that read the same input are stored as one matrix. Attention over the cache and the sum over tensor parallel
ranks are passed in: this module knows no cache and no other rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.layers import Attend, Attention, FeedForward, Norm, Projection
from pdcore.engine.model.rope import rotation

Sum = Callable[[Tensor], Tensor]
"""A tensor of which every tensor parallel rank has a summand -> the sum; may overwrite its argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block."""

    input_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalModel:
    """Weights of one model, or of one rank's shard with its sizes in ``config``, on one device.

    ``frequency`` and ``rope_scale`` come from :mod:`.rope`.
    """

    config: ModelConfig
    embedding: Tensor
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Projection
    frequency: Tensor
    rope_scale: float

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in; the embedding may be stored narrower."""
        return self.final_norm.weight.dtype

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend, add_up: Sum) -> Tensor:
        """The last layer's output ``[tokens, hidden]`` before the final norm."""
        state = F.embedding(token_ids, self.embedding).to(self.dtype)
        turn = rotation(positions, self.frequency, self.rope_scale, self.dtype)
        for number, layer in enumerate(self.layers):
            state += add_up(layer.attention(number, layer.input_norm(state), turn, attend))
            state += add_up(layer.mlp(layer.mlp_norm(state)))
        return state

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 ``[tokens, vocab]`` for rows of :meth:`hidden`."""
        return self.head(self.final_norm(hidden)).float()
