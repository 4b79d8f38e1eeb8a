"""What Ascend's fused attention is given says what torch's kernel is given, by a plug-in that takes its arguments."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.attention_npu import fused

pytestmark = pytest.mark.unit


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, None, None, None, int, int, int]:
    """By the plug-in's documentation: a mask of ``[S, S]`` or ``[B, 1, S, S]``, true where hidden; seven results."""
    assert input_layout == "BNSD"
    assert query.shape[1] == head_num
    assert all(tensor.is_contiguous() for tensor in (query, key, value))
    if atten_mask is not None:
        assert atten_mask.dtype is torch.bool
        whole = (query.shape[2], key.shape[2])
        assert atten_mask.shape in (whole, (query.shape[0], 1, *whole))
    made = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if atten_mask is None else ~atten_mask,
        scale=scale,
        enable_gqa=key.shape[1] != head_num,
    )
    return made, None, None, None, 0, 0, 0


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch_npu")
    module.npu_fusion_attention = npu_fusion_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", module)


def tensors(tokens: int, context: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 4, tokens, 8), torch.randn(2, 2, context, 8), torch.randn(2, 2, context, 8)


def test_a_causal_chunk() -> None:
    queries, keys, values = tensors(5, 5)
    expected = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(fused(queries, keys, values, None, None, causal=True), expected)


def test_a_chunk_behind_a_context_with_a_scale_of_its_own() -> None:
    queries, keys, values = tensors(3, 7)
    mask = torch.ones(3, 7, dtype=torch.bool).tril(4)
    expected = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(fused(queries, keys, values, mask, 0.3, causal=False), expected)


def test_padded_contexts() -> None:
    queries, keys, values = tensors(2, 6)
    bias = torch.zeros(2, 1, 1, 6)
    bias[1, ..., 4:] = float("-inf")
    expected = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=True)
    torch.testing.assert_close(fused(queries, keys, values, bias, None, causal=False), expected)
    everything = F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    torch.testing.assert_close(fused(queries, keys, values, None, None, causal=False), everything)
