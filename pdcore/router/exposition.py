"""Series as Prometheus reads them: made when it reads, from the numbers that :mod:`pdcore.router.series` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pdcore.router.series import NO_LABELS, Labels, Spread, Tally


def counter(registry: CollectorRegistry, name: str, help_text: str, labels: Labels = NO_LABELS) -> Tally:
    """A tally that ``registry`` shows as a counter."""
    return _tally(registry, partial(CounterMetricFamily, name, help_text), labels)


def gauge(registry: CollectorRegistry, name: str, help_text: str, labels: Labels = NO_LABELS) -> Tally:
    """A tally that may fall again."""
    return _tally(registry, partial(GaugeMetricFamily, name, help_text), labels)


def histogram(
    registry: CollectorRegistry,
    name: str,
    help_text: str,
    bounds: Sequence[float],
    labels: Labels = NO_LABELS,
) -> Spread:
    """A spread that ``registry`` shows as a histogram."""
    spread = Spread(bounds, labels)
    registry.register(_Spreads(spread, partial(HistogramMetricFamily, name, help_text, labels=tuple(labels))))
    return spread


def _tally(
    registry: CollectorRegistry,
    family: Callable[..., CounterMetricFamily | GaugeMetricFamily],
    labels: Labels,
) -> Tally:
    tally = Tally(labels)
    registry.register(_Tallies(tally, partial(family, labels=tuple(labels))))
    return tally


class _Tallies(Collector):
    def __init__(self, tally: Tally, family: Callable[[], CounterMetricFamily | GaugeMetricFamily]) -> None:
        self._tally = tally
        self._family = family

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, value in self._tally.values.items():
            family.add_metric(labels, value)
        yield family


class _Spreads(Collector):
    def __init__(self, spread: Spread, family: Callable[[], HistogramMetricFamily]) -> None:
        self._spread = spread
        self._family = family

    def collect(self) -> Iterable[Metric]:
        family, spread = self._family(), self._spread
        edges = [*map(floatToGoString, spread.bounds), "+Inf"]
        for labels, counts in spread.counts.items():
            buckets = [(edge, float(below)) for edge, below in zip(edges, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, spread.sums[labels])
        yield family
