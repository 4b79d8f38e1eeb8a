"""A packed projection computes what the plain one does, and is made only where that helps."""

from __future__ import annotations

import pytest
import torch

from pdcore.engine.model.layers import Linear
from pdcore.engine.model.packing import Packed, packed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("rows", [1, 3, 8, 65])
@pytest.mark.parametrize("biased", [False, True])
def test_it_computes_the_same_whatever_the_number_of_rows(rows: int, biased: bool) -> None:
    torch.manual_seed(0)
    plain = Linear(torch.randn(1030, 515), torch.randn(1030) if biased else None)
    one = packed(plain)
    assert isinstance(one, Packed) == torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    inputs = torch.randn(rows, 515)
    with torch.inference_mode():
        torch.testing.assert_close(one(inputs), plain(inputs), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "weight",
    [
        torch.empty(64, 32),
        torch.empty(512, 1536),
        torch.empty(1536, 512, dtype=torch.bfloat16),
        torch.empty(1536, 512, device="meta"),
    ],
    ids=["small", "high", "bfloat16", "another device"],
)
def test_others_stay_what_they_are(weight: torch.Tensor) -> None:
    plain = Linear(weight)
    assert packed(plain) is plain
