"""What the samples of a run say: medians, beside the best peer's of the same run. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.figures import Figure, limit
from bench.router.loads import Load, Requests, Sample, Streams
from bench.router.targets import BARE, DIRECT, FEATURES, OURS

ONE: Final = Requests(connections=1, prompt_bytes=1024)
SMALL: Final = Requests(connections=64, prompt_bytes=1024)
LARGE: Final = Requests(connections=64, prompt_bytes=8192)
PACED: Final = Streams(connections=256, interval_us=20_000, spread=True)
LOADS: Final[tuple[Load, ...]] = (ONE, SMALL, LARGE, PACED)

COLUMNS: Final = ("cpu_us", "per_s", "p50_ms", "p99_ms", "rss_mb", "failed")
MOST_RSS_MB: Final = 100.0


@dataclass(frozen=True, slots=True)
class Results:
    """Every sample of a run, by target and load."""

    samples: Mapping[tuple[str, str], Sequence[Sample]]

    def median(self, target: str, load: Load, figure: str) -> float | None:
        """None where nothing was measured."""
        values = [one[figure] for one in self.samples.get((target, load.name), ())]
        return statistics.median(values) if values else None

    def best(self, targets: Iterable[str], load: Load, figure: str) -> tuple[str, float] | None:
        """The smallest median among ``targets``, and whose it is."""
        found = {name: self.median(name, load, figure) for name in targets}
        known = [(value, name) for name, value in found.items() if value is not None]
        return (min(known)[1], min(known)[0]) if known else None

    def targets(self) -> list[str]:
        """In the order they were measured in."""
        return list(dict.fromkeys(target for target, _ in self.samples))


def judged(results: Results) -> list[Figure]:
    """Our figures beside the best peer's, with the largest ratio that will do."""
    ours = {OURS, BARE, DIRECT, *(one.name for one in FEATURES.values())}
    peers = [name for name in results.targets() if name not in ours]
    usual = [name for name in peers if not name.endswith("-fast")]
    made = [
        _beside(results, OURS, usual, SMALL, "cpu_us", "us CPU/request", 1.25),
        _beside(results, OURS, usual, LARGE, "cpu_us", "us CPU/request", 1.25),
        _beside(results, BARE, peers, SMALL, "cpu_us", "us CPU/request", 1.0),
        _beside(results, OURS, peers, PACED, "cpu_us", "us CPU/chunk", 0.9),
        _beside(results, OURS, peers, PACED, "p99_ms", "ms gap p99", 1.0),
        _added(results, peers),
        *(_memory(results, load) for load in LOADS),
        *(_price(results, feature, target.name) for feature, target in FEATURES.items()),
    ]
    return [figure for figure in made if figure is not None]


def _beside(
    results: Results, target: str, peers: Sequence[str], load: Load, figure: str, unit: str, wanted: float
) -> Figure | None:
    value, best = results.median(target, load, figure), results.best(peers, load, figure)
    if value is None or best is None:
        return None
    return Figure(
        name=f"{target}: {load.name}",
        value=value,
        unit=unit,
        beside=best[0],
        reference=best[1],
        wanted=wanted,
    )


def _added(results: Results, peers: Sequence[str]) -> Figure | None:
    """Latency that a router adds to asking the engine itself, at one connection."""
    value, best = results.median(OURS, ONE, "p50_ms"), results.best(peers, ONE, "p50_ms")
    direct = results.median(DIRECT, ONE, "p50_ms")
    if value is None or best is None or direct is None:
        return None
    return Figure(
        name=f"{OURS}: added, {ONE.name}",
        value=value - direct,
        unit="ms p50",
        beside=best[0],
        reference=best[1] - direct,
        wanted=1.3,
    )


def _memory(results: Results, load: Load) -> Figure | None:
    value = results.median(OURS, load, "rss_mb")
    return None if value is None else limit(f"{OURS}: {load.name}", value, "MB resident", MOST_RSS_MB)


def _price(results: Results, feature: str, without: str) -> Figure | None:
    value, less = results.median(OURS, SMALL, "cpu_us"), results.median(without, SMALL, "cpu_us")
    if value is None or less is None:
        return None
    return Figure(
        name=f"price of {feature}: {value - less:+.0f} us",
        value=value,
        unit="us CPU/request",
        beside="without",
        reference=less,
    )


def table(results: Results, load: Load) -> list[str]:
    """One line per target: medians, with the range of the CPU figure."""
    lines = [f"{load.name:<24}" + "".join(f"{column:>12}" for column in COLUMNS) + "   cpu_us from-to"]
    for target in results.targets():
        samples = results.samples.get((target, load.name))
        if samples:
            cells = "".join(
                f"{statistics.median(one[column] for one in samples):12,.2f}" for column in COLUMNS
            )
            used = [one["cpu_us"] for one in samples]
            lines.append(f"{target:<24}{cells}   {min(used):,.1f}-{max(used):,.1f}")
    return lines
