"""One interleaved run: in every repetition each target meets each load once, so that drift meets all alike."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.figures import show
from bench.progress import step
from bench.router.loads import Sample, at_rest, measure, warm_up
from bench.router.processes import Engines, Router, Running
from bench.router.targets import DIRECT, TARGETS, Target
from bench.router.verdicts import LOADS, Results, judged, table

REST_S = 1.0


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 when a limit is not kept."""
    parser = argparse.ArgumentParser(prog="bench router", description=__doc__)
    parser.add_argument("--targets", help=f"comma-separated, of: {', '.join(TARGETS)}")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--samples", type=Path, help="a file for every single sample, one JSON line each")
    given = parser.parse_args(arguments)
    chosen = _chosen(given.targets)
    samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(given.reps):
            for target in chosen:
                step(f"{target.name}, repetition {number + 1} of {given.reps}")
                for name, sample in _meet(target, given.seconds, Path(scratch)):
                    samples[target.name, name].append(sample)
                    _keep(given.samples, target.name, name, sample)
    results = Results(samples)
    for load in LOADS if not given.json else ():
        print("\n".join([*table(results, load), ""]))
    return show(judged(results), as_json=given.json)


def _chosen(names: str | None) -> list[Target]:
    if names is not None:
        return [TARGETS[name.strip()] for name in names.split(",")]
    missing = [one.name for one in TARGETS.values() if not one.installed]
    if missing:
        step(f"not installed, so left out: {', '.join(missing)}")
    return [one for one in TARGETS.values() if one.installed]


def _meet(target: Target, seconds: float, scratch: Path) -> Iterator[tuple[str, Sample]]:
    """Every load on a fresh router, by its name."""
    with _started(target, scratch) as (engines, router, port):
        time.sleep(REST_S)
        if isinstance(router, Router):
            yield "at rest", at_rest(router)
        warm_up(port, scratch)
        for load in LOADS:
            yield load.name, measure(load, router, port, engines, seconds, scratch)


@contextmanager
def _started(target: Target, scratch: Path) -> Iterator[tuple[Engines, Running, int]]:
    with ExitStack() as stack:
        engines = stack.enter_context(Engines(scratch / "engines.log"))
        if target.name == DIRECT:
            yield engines, engines, engines.decode
            return
        router = stack.enter_context(Router(target, engines, scratch / "router.log"))
        yield engines, router, router.port


def _keep(file: Path | None, target: str, load: str, sample: Sample) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"target": target, "load": load, **sample}) + "\n")
