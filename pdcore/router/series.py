"""Counters and histograms whose label sets are closed, cheap enough for the request path.

A router has one thread, so a series is a number and needs no lock; what Prometheus reads is made when it reads. Whoever
counts under labels that were not announced has a bug and gets a KeyError.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, product
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = Mapping[str, Sequence[str]]
NO_LABELS: Final[Labels] = {}


class Tally(Collector):
    """A counter for every combination of ``labels``; a gauge where it may fall again."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        help_text: str,
        labels: Labels = NO_LABELS,
        *,
        falls: bool = False,
    ) -> None:
        self._name = name
        self._help = help_text
        self._labels = tuple(labels)
        self._falls = falls
        self._values = dict.fromkeys(product(*labels.values()), 0)
        registry.register(self)

    def inc(self, *labels: str) -> None:
        """One more."""
        self._values[labels] += 1

    def dec(self, *labels: str) -> None:
        """One less."""
        self._values[labels] -= 1

    def value(self, *labels: str) -> int:
        """How many now."""
        return self._values[labels]

    def collect(self) -> Iterable[Metric]:
        family: CounterMetricFamily | GaugeMetricFamily
        if self._falls:
            family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        else:
            family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Spread(Collector):
    """A histogram with upper ``bounds`` for every value of at most one label."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        help_text: str,
        bounds: Sequence[float],
        labels: Labels = NO_LABELS,
    ) -> None:
        self._name = name
        self._help = help_text
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._counts = {one: [0] * (len(bounds) + 1) for one in product(*labels.values())}
        self._sums = dict.fromkeys(self._counts, 0.0)
        registry.register(self)

    def observe(self, value: float, *labels: str) -> None:
        """One more value; one that equals a bound is below it."""
        self._counts[labels][bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        edges = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            buckets = [(edge, float(below)) for edge, below in zip(edges, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, self._sums[labels])
        yield family
