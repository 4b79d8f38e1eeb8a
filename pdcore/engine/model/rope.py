"""Rotary position embeddings: one frequency per pair of dimensions, and its variants for longer contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pdcore.engine.model.rope_config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position of each pair (float32, ``[head_dim / 2]``, on the CPU), and the scale of cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim), _yarn_scale(rope)
    return plain, 1.0


def rotation(positions: Tensor, frequency: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What :func:`rotate` takes for ``positions`` ``[tokens]``, ``[tokens, 1, head_dim]`` each: the cosines of both halves,
    and their sines, the first half's negative."""
    angles = positions.to(torch.float32)[:, None, None] * frequency
    cos, sin = (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``heads`` ``[tokens, n, head_dim]`` turned by each token's position; halves, not neighbours, form the pairs."""
    first, second = heads.chunk(2, dim=-1)
    return (heads * cos).addcmul_(torch.cat((second, first), dim=-1), sin)


def score_scale(rope: RopeConfig, query_dim: int) -> float:
    """What latent attention multiplies scores with: stretched positions sharpen them too."""
    scale = 1 / math.sqrt(query_dim)
    if rope.kind == "default" or not rope.mscale_all_dim:
        return scale
    magnitude = _magnitude(rope, rope.mscale_all_dim)
    return scale * magnitude * magnitude


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Short waves stay, waves longer than the original context are stretched, those between are blended."""
    turns = rope.original_context * plain / (2 * math.pi)  # full turns within the original context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = blend.clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / rope.factor


def _yarn(rope: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """As llama3's blend, but linear in the dimension's index between two bounds given in turns."""
    low, high = (
        _pair_with_turns(rope, head_dim, rope.beta_fast),
        _pair_with_turns(rope, head_dim, rope.beta_slow),
    )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low or 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def _pair_with_turns(rope: RopeConfig, head_dim: int, turns: float) -> float:
    wavelengths = rope.original_context / (turns * 2 * math.pi)
    return head_dim * math.log(wavelengths) / (2 * math.log(rope.theta))


def _yarn_scale(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(rope, rope.mscale) / _magnitude(rope, rope.mscale_all_dim)
    return _magnitude(rope, 1.0)


def _magnitude(rope: RopeConfig, weight: float) -> float:
    return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0
