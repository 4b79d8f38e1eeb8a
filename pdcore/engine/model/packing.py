"""Projections in the order in which the CPU's matrix product reads them.

A product with few rows spends more time on bringing a weight in order than on multiplying. oneDNN does that once, at
load, and then one row takes 0.8 of the time, 8 rows 0.7, 32 rows 0.75 and a prompt's 256 rows 0.85. MKL's order makes
one row as fast and several slower. Where the library is missing, on other devices and for other types a projection
stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.layers import Linear, Projection

_LEAST_ELEMENTS: Final = 1 << 18
"""Smaller weights stay in a cache, where their order matters less."""
_ROWS_HINT: Final = 32
"""For how many rows the order is chosen: one row is faster with it than with the order for one."""


@dataclass(frozen=True, slots=True)
class Packed:
    """``weight`` is oneDNN's."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: Linear) -> Packed:
        """A copy of ``linear``."""
        return cls(_operators()._reorder_linear_weight(linear.weight, _ROWS_HINT), linear.bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        made: Tensor = _operators()._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        return made


def packed(linear: Linear) -> Projection:
    """``linear`` as it is computed fastest here: what is large, float32 and on the CPU is packed."""
    weight = linear.weight
    suits = weight.numel() >= _LEAST_ELEMENTS and weight.dtype is torch.float32 and weight.is_cpu
    return Packed.of(linear) if suits and _works() else linear


def _operators() -> Any:
    return torch.ops.mkldnn


@cache
def _works() -> bool:
    """Whether this build of torch has the operators, and they multiply: they are not part of its public interface."""
    plain = Linear(torch.arange(48.0).view(6, 8) / 48, torch.arange(6.0))
    inputs = torch.arange(24.0).view(3, 8)
    try:
        found = Packed.of(plain)(inputs)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, F.linear(inputs, plain.weight, plain.bias))
