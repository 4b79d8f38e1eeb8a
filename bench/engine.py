"""The engine beside its limits: ``python -m bench engine [--json] [--requests 200] [--only loop,write,mooncake,serving,chunks]``.

Hand-offs and first tokens are those of real processes on a tiny model; the loop is turned here, with everything but its
model; KV writes go through both sessions. Figures that are compared come from one run, alternately.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from bench import engine_alone, engine_chunks, engine_loop, engine_serving, engine_writes
from bench.figures import Figure, show
from bench.progress import step

REQUESTS: Final = 200


def main(arguments: list[str]) -> int:
    """Measure what was asked for and show the table; 1 when a bound is not met."""
    parser = argparse.ArgumentParser(prog="python -m bench engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="hand-offs that are measured")
    parser.add_argument("--only", default=",".join(_parts(REQUESTS)), help="what to measure, by comma")
    given = parser.parse_args(arguments)
    parts = _parts(given.requests)
    chosen = given.only.split(",")
    if unknown := set(chosen) - set(parts):
        parser.error(f"--only knows {', '.join(parts)}, not {', '.join(sorted(unknown))}")
    return show(measure({name: parts[name] for name in chosen}), as_json=given.json)


def measure(parts: Mapping[str, Callable[[], list[Figure]]]) -> list[Figure]:
    """The figures of ``parts``, in their order."""
    figures: list[Figure] = []
    for name, part in parts.items():
        step(f"engine: {name}")
        figures += part()
    return figures


def _parts(requests: int) -> dict[str, Callable[[], list[Figure]]]:
    return {
        "loop": engine_loop.measure,
        "write": engine_writes.measure,
        "mooncake": engine_alone.measure,
        "serving": lambda: engine_serving.measure(requests),
        "chunks": engine_chunks.measure,
    }
