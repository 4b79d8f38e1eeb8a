"""Series as Prometheus reads them: every label set from the start, the same text as its own client's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdcore.router.exposition import counter, gauge, histogram

pytestmark = pytest.mark.unit

few = settings(max_examples=40, deadline=None, derandomize=True, database=None)
BOUNDS = (0.1, 0.5, 1, 10)


def samples(registry: CollectorRegistry) -> set[str]:
    """Every line that holds a number, without when a series was created."""
    lines = generate_latest(registry).decode().splitlines()
    return {line for line in lines if not line.startswith("#") and "_created" not in line}


def test_every_label_set_is_there_from_the_start_and_no_other_can_be_counted() -> None:
    registry = CollectorRegistry()
    tally = counter(registry, "t", "Help.", {"a": ("x", "y"), "b": ("1", "2")})
    assert len(samples(registry)) == 4
    tally.inc("x", "2")
    assert 't_total{a="x",b="2"} 1.0' in samples(registry)
    assert tally.value("x", "2") == 1
    with pytest.raises(KeyError):
        tally.inc("z", "2")


def test_a_tally_reads_as_the_clients_own_counter_and_gauge() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally, their_count = counter(ours, "c", "Help."), Counter("c", "Help.", registry=theirs)
    level, their_level = gauge(ours, "g", "Help."), Gauge("g", "Help.", registry=theirs)
    for _ in range(3):
        tally.inc()
        their_count.inc()
        level.inc()
        their_level.inc()
    level.dec()
    their_level.dec()
    assert samples(ours) == samples(theirs)


@few
@given(st.lists(st.sampled_from([*BOUNDS, 0.0, 0.05, 0.3, 11.0, 1e9]), max_size=12))
def test_a_spread_reads_as_the_clients_own_histogram(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread = histogram(ours, "h", "Help.", BOUNDS, {"e": ("x",)})
    their_spread = Histogram("h", "Help.", ["e"], buckets=BOUNDS, registry=theirs)
    their_spread.labels("x")
    for value in values:
        spread.observe(value, "x")
        their_spread.labels("x").observe(value)
    assert samples(ours) == samples(theirs)
