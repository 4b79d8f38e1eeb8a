"""The computation of a dense decoder-only language model; families differ by its configuration only.

Weights are plain tensors. Projections that read the same input are stored as one matrix, so a layer is four matrix
products. Attention and the sum over tensor parallel ranks are passed in: this module knows no cache and no other rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.rope import rotate, rotation

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values), each ``[tokens, heads, head_dim]`` -> ``[tokens, heads * head_dim]``."""

Sum = Callable[[Tensor], Tensor]
"""A tensor of which every tensor parallel rank has a summand -> the sum; may overwrite its argument."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``weight`` is ``[out, in]``."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block. ``qkv`` stacks query, key and value rows, ``gate_up`` gate and up rows.

    ``qk_norm`` is ``[heads + kv_heads, head_dim]``, the norm weight of each query and key head, where there is one.
    """

    input_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalModel:
    """Weights of one model, or of one rank's shard with its sizes in ``config``, on one device.

    ``frequency`` and ``rope_scale`` come from :mod:`.rope`.
    """

    config: ModelConfig
    embedding: Tensor
    layers: tuple[Layer, ...]
    final_norm: Tensor
    head: Tensor
    frequency: Tensor
    rope_scale: float

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend, add_up: Sum) -> Tensor:
        """The last layer's output ``[tokens, hidden]`` before the final norm."""
        state = F.embedding(token_ids, self.embedding)
        cos, sin = rotation(positions, self.frequency, self.rope_scale, self.dtype)
        for number, layer in enumerate(self.layers):
            attended = attend(number, *self._qkv(layer, self._norm(state, layer.input_norm), cos, sin))
            state = state + add_up(layer.out(attended))
            gate, up = layer.gate_up(self._norm(state, layer.mlp_norm)).chunk(2, dim=-1)
            state = state + add_up(layer.down(F.silu(gate) * up))
        return state

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 ``[tokens, vocab]`` for rows of :meth:`hidden`."""
        return F.linear(self._norm(hidden, self.final_norm), self.head).float()

    def _norm(self, inputs: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(inputs, weight.shape, weight, self.config.rms_eps)

    def _qkv(self, layer: Layer, inputs: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        heads = layer.qkv(inputs).view(inputs.shape[0], -1, config.head_dim)
        turned, values = heads[:, : -config.kv_heads], heads[:, -config.kv_heads :]
        if layer.qk_norm is not None:
            turned = F.rms_norm(turned, (config.head_dim,), None, config.rms_eps) * layer.qk_norm
        turned = rotate(turned, cos, sin)
        return turned[:, : config.heads], turned[:, config.heads :], values
