"""Projections of which a rank holds some rows or columns, read from the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pdcore.engine.model.layers import Linear
from pdcore.engine.model.weights import ALL, Weights


@dataclass(frozen=True, slots=True)
class Part:
    """The ``own`` of ``whole`` rows or columns."""

    whole: int
    own: slice

    @classmethod
    def of(cls, whole: int, own: range, rows: int = 1) -> Part:
        """The rows of the heads ``own`` of ``whole``, each of which has ``rows``."""
        return cls(whole * rows, slice(own.start * rows, own.stop * rows))

    @classmethod
    def all(cls, whole: int) -> Part:
        """Every one."""
        return cls(whole, slice(0, whole))


def stacked(weights: Weights, parts: Mapping[str, Part], inputs: int, *, biased: bool) -> Linear:
    """The own rows of the projections ``parts`` of one input, one below the other."""
    matrices = [
        weights.take(f"{name}.weight", part.whole, inputs, part=(part.own,)) for name, part in parts.items()
    ]
    biases = [
        weights.take(f"{name}.bias", part.whole, part=(part.own,)) for name, part in parts.items() if biased
    ]
    return Linear(weight=torch.cat(matrices), bias=torch.cat(biases) if biased else None)


def summed(
    weights: Weights, name: str, inputs: Part, outputs: int, *, biased: bool, adds_bias: bool
) -> Linear:
    """The own columns of a projection: the sum over ranks is its result, to which one of them adds the bias."""
    matrix = weights.take(f"{name}.weight", outputs, inputs.whole, part=(ALL, inputs.own))
    bias = weights.take(f"{name}.bias", outputs) if biased else None
    return Linear(weight=matrix, bias=bias if adds_bias else None)
