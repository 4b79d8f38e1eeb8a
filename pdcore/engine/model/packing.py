"""Projections in the order in which the CPU's matrix product reads them.

A product with few rows spends more time on bringing a weight in order than on multiplying. Libraries do that once, at
load. MKL's order makes one row 1.6 times as fast and 32 rows 1.2 times; oneDNN's does nothing for one row, but several
of a very wide weight, the output head, become twice as fast. Where a library is missing, on other devices and for other
types a projection stays what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pdcore.engine.model.layers import Linear, Projection

_LEAST_ELEMENTS: Final = 1 << 19
"""Smaller weights stay in a cache, where their order matters less."""
_VERY_WIDE: Final = 16
_ROWS_HINT: Final = 8


@dataclass(frozen=True, slots=True)
class PackedByMkl:
    """``weight`` is MKL's; ``shape`` has the size of the original and no memory."""

    weight: Tensor
    shape: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: Linear) -> PackedByMkl:
        """A copy of ``linear``."""
        weight = _operators().mkl._mkl_reorder_linear_weight(linear.weight, _ROWS_HINT)
        return cls(weight, torch.empty(1).expand(linear.weight.shape), linear.bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        made: Tensor = _operators().mkl._mkl_linear(inputs, self.weight, self.shape, self.bias, len(inputs))
        return made


@dataclass(frozen=True, slots=True)
class PackedByOneDnn:
    """``weight`` is oneDNN's."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: Linear) -> PackedByOneDnn:
        """A copy of ``linear``."""
        return cls(_operators().mkldnn._reorder_linear_weight(linear.weight, _ROWS_HINT), linear.bias)

    def __call__(self, inputs: Tensor) -> Tensor:
        made: Tensor = _operators().mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")
        return made


Packing = type[PackedByMkl] | type[PackedByOneDnn]
_PACKINGS: Final[dict[str, Packing]] = {one.__name__: one for one in (PackedByMkl, PackedByOneDnn)}


def packed(linear: Linear) -> Projection:
    """``linear`` as it is computed fastest here: weights that are wider than high, large, float32 and on the CPU."""
    rows, columns = linear.weight.shape
    large = rows > columns and rows * columns >= _LEAST_ELEMENTS
    if not large or linear.weight.dtype is not torch.float32 or not linear.weight.is_cpu:
        return linear
    packing: Packing = PackedByOneDnn if rows >= _VERY_WIDE * columns else PackedByMkl
    return packing.of(linear) if _works(packing.__name__) else linear


def _operators() -> Any:
    return torch.ops


@cache
def _works(name: str) -> bool:
    """Whether this build of torch has the operators, and they multiply: they are not part of its public interface."""
    plain = Linear(torch.arange(48.0).view(6, 8) / 48, torch.arange(6.0))
    inputs = torch.arange(24.0).view(3, 8)
    try:
        found = _PACKINGS[name].of(plain)(inputs)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, F.linear(inputs, plain.weight, plain.bias))
