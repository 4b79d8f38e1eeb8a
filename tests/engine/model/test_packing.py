"""A packed projection computes what the plain one does, and is made only where that helps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pdcore.engine.model.layers import Linear
from pdcore.engine.model.packing import Packed, packed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("rows", [1, 3, 8, 65])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(1030, 515), (515, 1030), (3600, 150)])
def test_it_computes_the_same_whatever_the_number_of_rows(
    rows: int, biased: bool, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    plain = Linear(torch.randn(shape), torch.randn(shape[0]) if biased else None)
    one = packed(plain)
    library: Any = torch.backends.mkldnn
    assert isinstance(one, Packed) == library.is_available()
    inputs = torch.randn(rows, shape[1])
    with torch.inference_mode():
        torch.testing.assert_close(one(inputs), plain(inputs), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "weight",
    [
        torch.empty(64, 32),
        torch.empty(1536, 512, dtype=torch.bfloat16),
        torch.empty(1536, 512, device="meta"),
    ],
    ids=["small", "bfloat16", "another device"],
)
def test_others_stay_what_they_are(weight: torch.Tensor) -> None:
    plain = Linear(weight)
    assert packed(plain) is plain
