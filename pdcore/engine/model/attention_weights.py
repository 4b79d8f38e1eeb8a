"""The tensors of one layer's attention, for each kind of it."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pdcore.engine.model.attention import PLAIN, Scores
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.families import LatentConfig
from pdcore.engine.model.layers import Attention, GroupedAttention, LatentAttention, Linear, Norm
from pdcore.engine.model.packing import packed
from pdcore.engine.model.parts import Part, stacked, summed
from pdcore.engine.model.rope import score_scale
from pdcore.engine.model.shard import Shard
from pdcore.engine.model.weights import Weights

_LATENT_EPS: Final = 1e-6
"""DeepSeek's norms inside attention do not take the config's."""


def attention_of(weights: Weights, config: ModelConfig, shard: Shard, prefix: str) -> Attention:
    """The attention whose tensors' names begin with ``prefix``."""
    if config.latent is not None:
        return _latent(weights, config, config.latent, shard, prefix)
    return _grouped(weights, config, shard, prefix)


def _grouped(weights: Weights, config: ModelConfig, shard: Shard, prefix: str) -> GroupedAttention:
    size, own = config.head_dim, shard.share(config.heads)
    query = Part.of(config.heads, own, size)
    key = Part.of(config.kv_heads, shard.kv_heads(config.kv_heads), size)
    sinks = None
    if config.sinks:
        sinks = weights.take(f"{prefix}sinks", config.heads, part=(slice(own.start, own.stop),))
    return GroupedAttention(
        kv_heads=shard.sizes(config).kv_heads,
        head_dim=size,
        qkv=packed(
            stacked(
                weights,
                {f"{prefix}q_proj": query, f"{prefix}k_proj": key, f"{prefix}v_proj": key},
                config.hidden,
                biased=config.attention_bias,
            )
        ),
        out=packed(
            summed(
                weights,
                f"{prefix}o_proj",
                query,
                config.hidden,
                biased=config.out_bias,
                adds_bias=shard.adds_bias,
            )
        ),
        qk_norm=_qk_norm(weights, config, shard, prefix) if config.qk_norm else None,
        eps=config.rms_eps,
        scores=PLAIN if sinks is None else Scores(sinks=sinks),
    )


def _qk_norm(weights: Weights, config: ModelConfig, shard: Shard, prefix: str) -> Tensor:
    query = weights.take(f"{prefix}q_norm.weight", config.head_dim)
    key = weights.take(f"{prefix}k_norm.weight", config.head_dim)
    own = shard.sizes(config)
    return torch.cat((query.expand(own.heads, -1), key.expand(own.kv_heads, -1)))


def _latent(
    weights: Weights, config: ModelConfig, latent: LatentConfig, shard: Shard, prefix: str
) -> LatentAttention:
    heads = shard.share(config.heads)
    query = Part.of(config.heads, heads, latent.query_dim)
    query_down = query_norm = None
    if latent.q_rank is not None:
        query_down = packed(_projected(weights, f"{prefix}q_a_proj", config, latent.q_rank))
        query_norm = Norm(weights.take(f"{prefix}q_a_layernorm.weight", latent.q_rank), _LATENT_EPS)
    name, inputs = ("q_proj", config.hidden) if latent.q_rank is None else ("q_b_proj", latent.q_rank)
    both = Part.of(config.heads, heads, latent.nope_dim + latent.value_dim)
    up = weights.take(f"{prefix}kv_b_proj.weight", both.whole, latent.kv_rank, part=(both.own,))
    by_head = up.view(len(heads), -1, latent.kv_rank)
    key_up, value_up = torch.split(by_head, [latent.nope_dim, latent.value_dim], dim=1)
    down = _projected(weights, f"{prefix}kv_a_proj_with_mqa", config, latent.kv_rank + latent.rope_dim)
    queries = stacked(weights, {prefix + name: query}, inputs, biased=False)
    return LatentAttention(
        query_down=query_down,
        query_norm=query_norm,
        query=packed(_by_halves(queries, latent, len(heads))),
        down=packed(_by_halves(down, latent, 1)),
        latent_norm=Norm(weights.take(f"{prefix}kv_a_layernorm.weight", latent.kv_rank), _LATENT_EPS),
        key_up=key_up.contiguous(),
        value_up=value_up.transpose(1, 2).contiguous(),
        out=packed(
            summed(
                weights,
                f"{prefix}o_proj",
                Part.of(config.heads, heads, latent.value_dim),
                config.hidden,
                biased=config.attention_bias,
                adds_bias=shard.adds_bias,
            )
        ),
        scores=Scores(scale=score_scale(config.rope, latent.query_dim)),
    )


def _projected(weights: Weights, name: str, config: ModelConfig, outputs: int) -> Linear:
    """A projection that every rank has whole."""
    return stacked(weights, {name: Part.all(outputs)}, config.hidden, biased=config.attention_bias)


def _by_halves(linear: Linear, latent: LatentConfig, heads: int) -> Linear:
    """The rows at each head's end that are rotated, reordered so that halves, not neighbours, are the pairs.

    Queries and keys are reordered alike, which changes no score.
    """
    if not latent.interleaved:
        return linear
    size = len(linear.weight) // heads
    tail = torch.arange(size - latent.rope_dim, size)
    within = torch.cat((torch.arange(size - latent.rope_dim), tail[0::2], tail[1::2]))
    rows = (torch.arange(heads)[:, None] * size + within).flatten().to(linear.weight.device)
    return Linear(linear.weight[rows], None if linear.bias is None else linear.bias[rows])
