"""What layers are made of: projections, attention of either kind, MLPs. Weights are plain tensors.

Attention over the cache is passed in: nothing here knows a cache or another rank. What a layer returns is this tensor
parallel rank's summand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.attention import PLAIN, Scores
from pdcore.engine.model.families import ClampedGate
from pdcore.engine.model.rope import rotate

Rotation = tuple[Tensor, Tensor]
"""cos and sin of each token's angles, as :func:`pdcore.engine.model.rope.rotation` gives them."""


class Attend(Protocol):
    """:func:`pdcore.engine.model.attention.attend` for one batch."""

    def __call__(self, layer: int, queries: Tensor, rows: Sequence[Tensor], scores: Scores) -> Tensor: ...


class Attention(Protocol):
    """One layer's attention with its projections: ``[tokens, hidden]`` to the same."""

    def __call__(self, layer: int, inputs: Tensor, turn: Rotation, attend: Attend) -> Tensor: ...


class FeedForward(Protocol):
    """One layer's MLP or experts: ``[tokens, hidden]`` to the same."""

    def __call__(self, inputs: Tensor) -> Tensor: ...


class Projection(Protocol):
    """A matrix product, and its bias: ``[tokens, in]`` to ``[tokens, out]``."""

    def __call__(self, inputs: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """``weight`` is ``[out, in]``."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Division by the root mean square over the last dimension."""

    weight: Tensor
    eps: float

    def __call__(self, inputs: Tensor) -> Tensor:
        return F.rms_norm(inputs, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Heads that share ``kv_heads`` keys and values. ``qkv`` stacks query, key and value rows.

    ``qk_norm`` is ``[heads + kv_heads, head_dim]``, the norm weight of each query and key head, where there is one.
    """

    kv_heads: int
    head_dim: int
    qkv: Projection
    out: Projection
    qk_norm: Tensor | None = None
    eps: float = 0.0
    scores: Scores = PLAIN

    def __call__(self, layer: int, inputs: Tensor, turn: Rotation, attend: Attend) -> Tensor:
        kv_heads = self.kv_heads
        heads = self.qkv(inputs).view(inputs.shape[0], -1, self.head_dim)
        turned, values = heads[:, :-kv_heads], heads[:, -kv_heads:]
        if self.qk_norm is not None:
            turned = F.rms_norm(turned, (self.head_dim,), None, self.eps) * self.qk_norm
        turned = rotate(turned, *turn)
        attended = attend(layer, turned[:, :-kv_heads], (turned[:, -kv_heads:], values), self.scores)
        return self.out(attended.flatten(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Heads whose keys and values are projections of one latent per token, which is what the cache keeps.

    The projections are applied to queries and results instead: a query is compared to latents (``key_up`` is
    ``[heads, nope_dim, kv_rank]``), and what is attended to is a latent (``value_up``: ``[heads, kv_rank, value_dim]``).
    ``down`` gives latent and rotated key. Queries come from ``query`` of the inputs, or of ``query_norm(query_down)``.
    """

    query_down: Projection | None
    query_norm: Norm | None
    query: Projection
    down: Projection
    latent_norm: Norm
    key_up: Tensor
    value_up: Tensor
    out: Projection
    scores: Scores

    def __call__(self, layer: int, inputs: Tensor, turn: Rotation, attend: Attend) -> Tensor:
        heads, nope_dim, kv_rank = self.key_up.shape
        query = inputs
        if self.query_down is not None and self.query_norm is not None:
            query = self.query_norm(self.query_down(inputs))
        queries = self.query(query).view(inputs.shape[0], heads, -1)
        by_latent = torch.bmm(queries[..., :nope_dim].transpose(0, 1), self.key_up).transpose(0, 1)
        turned = rotate(queries[..., nope_dim:], *turn)
        down = self.down(inputs)
        latent = self.latent_norm(down[:, :kv_rank]).unsqueeze(1)
        key = rotate(down[:, kv_rank:].unsqueeze(1), *turn)
        attended = attend(layer, torch.cat((by_latent, turned), dim=-1), (latent, key), self.scores)
        values = torch.bmm(attended.transpose(0, 1), self.value_up).transpose(0, 1)
        return self.out(values.flatten(1))


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``gate_up`` stacks gate and up rows."""

    gate_up: Projection
    down: Projection

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.down(gated(self.gate_up(inputs), None))


def gated(both: Tensor, clamped: ClampedGate | None) -> Tensor:
    """The activation of ``both`` gate and up, side by side: SiLU, or gpt-oss's."""
    gate, up = both.chunk(2, dim=-1)
    if clamped is None:
        return F.silu(gate).mul_(up)
    gate = gate.clamp(max=clamped.limit)
    up = up.clamp(-clamped.limit, clamped.limit)
    return gate * torch.sigmoid(gate * clamped.alpha) * (up + 1)
