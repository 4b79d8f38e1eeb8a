"""Fused attention of Ascend's plug-in, behind the seam of :mod:`pdcore.engine.model.attention`."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

BNSD = "BNSD"
"""The plug-in's word for ``[sequences, heads, tokens, dim]``."""


def fused(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None, *, causal: bool
) -> Tensor:
    """As torch's kernel: ``mask`` is true, or 0, where attended; else false, or minus infinity."""
    plugin: Any = importlib.import_module("torch_npu")
    made: Tensor = plugin.npu_fusion_attention(
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        queries.shape[1],
        BNSD,
        atten_mask=_hidden(queries, keys, mask, causal=causal),
        scale=queries.shape[-1] ** -0.5 if scale is None else scale,
    )[0]
    return made


def _hidden(queries: Tensor, keys: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor | None:
    """The plug-in's mask is true where nothing is looked at, and has all of its rows."""
    tokens, context = queries.shape[2], keys.shape[2]
    if causal:
        return torch.ones(tokens, context, dtype=torch.bool, device=queries.device).triu(1)
    if mask is None:
        return None
    hidden = ~mask if mask.dtype is torch.bool else mask < 0
    return hidden if hidden.ndim == 2 else hidden.expand(-1, -1, tokens, -1).contiguous()
