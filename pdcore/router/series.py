"""Counters and histograms whose label sets are closed, cheap enough for the request path.

A router has one thread, so a series is a number and needs no lock. Whoever counts under labels that were not announced
has a bug and gets a KeyError. What Prometheus reads of them is made in :mod:`pdcore.router.exposition`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

Labels = Mapping[str, Sequence[str]]
NO_LABELS: Final[Labels] = {}


class Tally:
    """A count for every combination of ``labels``: ``values`` by the labels' values. Mutable: those."""

    def __init__(self, labels: Labels = NO_LABELS) -> None:
        self.values = dict.fromkeys(product(*labels.values()), 0)

    def inc(self, *labels: str) -> None:
        """One more."""
        self.values[labels] += 1

    def dec(self, *labels: str) -> None:
        """One less."""
        self.values[labels] -= 1

    def value(self, *labels: str) -> int:
        """How many now."""
        return self.values[labels]


class Spread:
    """How often each stretch between the upper ``bounds`` was met, for every combination of ``labels``.

    Mutable: ``counts``, the last of which is above every bound, and ``sums`` of what was met.
    """

    def __init__(self, bounds: Sequence[float], labels: Labels = NO_LABELS) -> None:
        self.bounds = tuple(bounds)
        self.counts = {one: [0] * (len(bounds) + 1) for one in product(*labels.values())}
        self.sums = dict.fromkeys(self.counts, 0.0)

    def observe(self, value: float, *labels: str) -> None:
        """One more value; one that equals a bound is below it."""
        self.counts[labels][bisect_left(self.bounds, value)] += 1
        self.sums[labels] += value
