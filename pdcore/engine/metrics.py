"""What ``/metrics`` of a leader says: its requests, and the newest figures of its ranks.

Each leader has its own registry. Every label has a closed set of values: endpoints, outcomes (``ok`` or an error
code), rank positions, reasons; or, for peers, a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdcore.engine.messages import Stats
from pdcore.topology.keys import RankPosition

StatsByRank = Mapping[RankPosition, Stats]
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES: Final[Mapping[str, str]] = {
    "kv_blocks_total": "KV blocks of the pool",
    "kv_blocks_used": "KV blocks that belong to a request",
    "kv_blocks_cached": "KV blocks that belong to nobody and are remembered for prompts that begin alike",
    "kv_blocks_quarantined": "KV blocks a peer may still write into",
    "slots_total": "Metadata slots",
    "slots_used": "Metadata slots in use",
    "rooms": "Open rooms",
    "bootstrap": "Requests that wait for the other half of their room",
    "prealloc": "Requests that wait for blocks",
    "transfer": "Requests whose KV is on its way",
    "running": "Requests in the batch",
    "retracted": "Requests that gave their blocks back and wait to be computed again",
}
_COUNTERS: Final[Mapping[str, str]] = {
    "steps": "Steps of the loop",
    "retracted_total": "Times a request gave its blocks back",
    "handoffs_ok": "Hand-offs that succeeded",
    "handoffs_failed": "Hand-offs that failed",
    "prefill_tokens": "Prompt tokens computed",
    "output_tokens": "Tokens generated",
    "prefix_tokens": "Prompt tokens looked for in the prefix cache",
    "prefix_hit_tokens": "Prompt tokens found there",
}


class Metrics:
    """``stats`` gives the ranks' figures, ``view_age_s`` the seconds since the keyspace was last known to be alive."""

    def __init__(self, stats: Callable[[], StatsByRank], view_age_s: Callable[[], float]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.in_flight = Gauge(
            "pdcore_engine_http_in_flight", "Generation requests being answered.", registry=self.registry
        )
        self.requests = Counter(
            "pdcore_engine_requests",
            "Generation requests by how they ended.",
            ("endpoint", "outcome"),
            registry=self.registry,
        )
        self.first_token_s = Histogram(
            "pdcore_engine_time_to_first_token_seconds",
            "From the request's arrival to its first token, or to its hand-off.",
            ("endpoint",),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=self.registry,
        )
        age = Gauge(
            "pdcore_engine_view_age_seconds", "Age of the view of the keyspace.", registry=self.registry
        )
        age.set_function(view_age_s)
        self.registry.register(RankCollector(stats))

    def text(self) -> bytes:
        """Everything in the exposition format."""
        return generate_latest(self.registry)


class RankCollector(Collector):
    """Turns the newest :class:`Stats` of each rank into families, one sample per rank."""

    def __init__(self, stats: Callable[[], StatsByRank]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for field, sentence in _GAUGES.items():
            gauge = GaugeMetricFamily(f"pdcore_engine_{field}", f"{sentence}.", labels=("rank",))
            for rank, values in stats.items():
                gauge.add_metric((str(rank),), getattr(values, field))
            yield gauge
        for field, sentence in _COUNTERS.items():
            counter = CounterMetricFamily(f"pdcore_engine_{field}", f"{sentence}.", labels=("rank",))
            for rank, values in stats.items():
                counter.add_metric((str(rank),), getattr(values, field))
            yield counter
        yield from _failures(stats)
        yield from _peers(stats)


def _failures(stats: StatsByRank) -> Iterable[Metric]:
    """Failed hand-offs in the two families that never mix."""
    own = CounterMetricFamily(
        "pdcore_engine_request_failures",
        "Hand-offs that failed for a request's own reason.",
        labels=("rank", "reason"),
    )
    paths = CounterMetricFamily(
        "pdcore_engine_transfer_failures",
        "Hand-offs that failed on the way between two ranks.",
        labels=("rank", "engine", "peer", "reason"),
    )
    for rank, values in stats.items():
        for reason, count in values.request_failures.items():
            own.add_metric((str(rank), reason), count)
        for path in values.transfer_failures:
            paths.add_metric((str(rank), path.engine, path.peer, path.reason), path.count)
    return (own, paths)


def _peers(stats: StatsByRank) -> Iterable[Metric]:
    down = GaugeMetricFamily(
        "pdcore_engine_peers_down", "Prefill ranks that this rank does not reach.", labels=("rank",)
    )
    for rank, values in stats.items():
        down.add_metric((str(rank),), len(values.peers_down))
    return (down,)
