"""Attention over the paged KV cache, the seam another device's kernels go behind.

Single tokens are computed together: their contexts are gathered head by head, padded to the longest. The heads that
share a key/value head stand where a kernel expects query positions, so nothing is repeated in memory.

Keys and values of shared chunks are joined before anything is attended to: every rank's pool ends up with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.collective import ALONE, Group
from pdcore.engine.kv.pool import GroupPool, KvPool
from pdcore.engine.model import attention_npu
from pdcore.engine.model.attention_plan import AttentionPlan, Chunk, Joined, Singles


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a layer does to its scores. ``scale`` None is the root of the query's size; ``sinks`` ``[heads]`` are
    scores of each head that take part in the softmax and stand for no token."""

    scale: float | None = None
    sinks: Tensor | None = None


PLAIN = Scores()


def store(plan: AttentionPlan, pool: KvPool, layer: int, rows: Sequence[Tensor], cp: Group = ALONE) -> None:
    """Put ``rows``, and what the other ``cp`` ranks have, where :func:`attend` looks for them.

    ``rows`` are what the layer's KV entries keep, ``[tokens, kv_heads, dim]`` each: keys and values, or a latent, which
    is values and the front of keys, and the keys' rotated end.
    """
    part = plan.groups[pool.group_of[layer]]
    pool.of(layer).write(layer, part.slots, _join(plan.joined, [row.flatten(1) for row in rows], cp))


def attend(
    plan: AttentionPlan,
    pool: KvPool,
    layer: int,
    queries: Tensor,
    rows: Sequence[Tensor],
    scores: Scores = PLAIN,
) -> Tensor:
    """``queries`` are ``[tokens, heads, dim]``, the result ``[tokens, heads, value dim]``; ``rows`` were stored."""
    part, cache = plan.groups[pool.group_of[layer]], pool.of(layer)
    parts = [
        _attend_singles(singles, cache, layer, queries[singles.begin : singles.stop], scores)
        for singles in part.singles
    ]
    for chunk in part.chunks:
        own = slice(chunk.begin, chunk.stop)
        if chunk.context is None:
            context = [row[own].transpose(0, 1).unsqueeze(0) for row in rows]
        else:
            context = cache.read(layer, chunk.context)
        parts.append(_attend_chunk(chunk, queries[own], *_keys_and_values(cache, context), scores))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _keys_and_values(cache: GroupPool, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    first, second = rows
    return (torch.cat((first, second), dim=-1), first) if cache.latent else (first, second)


def _join(joined: Joined | None, rows: Sequence[Tensor], cp: Group) -> Sequence[Tensor]:
    """What is to be stored: the own rows that are not shared, and everybody's rows that are."""
    if joined is None:
        return rows
    widths = [row.shape[1] for row in rows]
    together = torch.cat(list(rows), dim=1)
    mine = together[joined.begin :]
    padded = F.pad(mine, (0, 0, 0, joined.most - len(mine)))
    everyone = cp.all_gather(padded).flatten(0, 1).index_select(0, joined.kept)
    return torch.split(torch.cat((together[: joined.begin], everyone)), widths, dim=1)


def _attend_singles(part: Singles, cache: GroupPool, layer: int, queries: Tensor, scores: Scores) -> Tensor:
    count, heads, dim = queries.shape
    keys, values = _keys_and_values(cache, cache.read(layer, part.context))
    kv_heads = keys.shape[1]
    grouped = queries.reshape(count, kv_heads, heads // kv_heads, dim)
    if queries.device.type == "cpu" and queries.dtype is torch.float32:
        attended = _by_products(grouped, keys, values, part.bias, scores)
    else:
        attended = _kernel(grouped, keys, values, part.bias, scores)
    return attended.reshape(count, heads, -1)


def _by_products(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scores: Scores
) -> Tensor:
    """Attention spelled out: for few queries per key, faster on a CPU than its kernel is (32 x 128 tokens: 1.3 ms, not
    1.6)."""
    count, kv_heads, group, dim = queries.shape
    scale = dim**-0.5 if scores.scale is None else scores.scale
    weights = torch.bmm((queries * scale).flatten(0, 1), keys.flatten(0, 1).transpose(1, 2))
    weights = weights.view(count, kv_heads, group, -1)
    if bias is not None:
        weights += bias
    if scores.sinks is not None:
        sinks = scores.sinks.view(1, kv_heads, group, 1).expand(count, -1, -1, -1)
        weights = torch.cat((weights, sinks), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = weights.softmax(dim=-1)
    attended = torch.bmm(weights.flatten(0, 1), values.flatten(0, 1))
    return attended.view(count, kv_heads, group, -1)


def _attend_chunk(chunk: Chunk, queries: Tensor, keys: Tensor, values: Tensor, scores: Scores) -> Tensor:
    attended = _kernel(
        queries.transpose(0, 1).unsqueeze(0), keys, values, chunk.mask, scores, causal=chunk.mask is None
    )
    return attended.squeeze(0).transpose(0, 1)


def _kernel(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scores: Scores,
    *,
    causal: bool = False,
) -> Tensor:
    """The device's kernel: ``queries`` ``[n, heads or kv_heads, tokens, dim]`` over ``keys`` and ``values``
    ``[n, kv_heads, context, dim]``."""
    if scores.sinks is not None:
        return _with_sinks(queries, keys, values, mask, scores, causal=causal)
    if queries.device.type == "npu":
        return attention_npu.fused(queries, keys, values, mask, scores.scale, causal=causal)
    return F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=causal,
        scale=scores.scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )


def _with_sinks(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scores: Scores, *, causal: bool
) -> Tensor:
    """The same with one more key, of zeros, whose score the mask sets to the head's sink and whose value is nothing."""
    assert scores.sinks is not None
    count, heads, tokens, _ = queries.shape
    context = keys.shape[2]
    allowed = mask
    if causal:
        allowed = torch.ones(tokens, context, dtype=torch.bool, device=queries.device).tril()
    added = queries.new_zeros(count, heads, tokens, context + 1)
    if allowed is not None and allowed.dtype is torch.bool:
        added[..., :-1].masked_fill_(~allowed, float("-inf"))
    elif allowed is not None:
        added[..., :-1] += allowed
    # Singles have a key/value head's queries side by side, chunks have tokens there.
    added[..., -1] = scores.sinks.view(1, heads, -1)
    return F.scaled_dot_product_attention(
        queries,
        F.pad(keys, (0, 0, 0, 1)),
        F.pad(values, (0, 0, 0, 1)),
        attn_mask=added,
        scale=scores.scale,
        enable_gqa=heads != keys.shape[1],
    )
