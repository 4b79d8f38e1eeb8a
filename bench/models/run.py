"""The engine beside ``transformers``: ``python -m bench models [--json] [--rounds 5] [--only decode,prefill,poisson,repeat,memory]``.

SmolLM2 in float32, both with as many threads as ``OMP_NUM_THREADS`` says (2 unless set). Times that are compared come
from one process, alternately; each is the median of its rounds. The engine is its scheduler, its cache and its model as
a rank turns them; the memory is a rank process's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Final

import torch

from bench.figures import Figure, show
from bench.models import memory, speed
from bench.progress import step

ROUNDS: Final = 5


def main(arguments: list[str]) -> int:
    """Measure what was asked for and show the table; 1 when a bound is not met."""
    parser = argparse.ArgumentParser(prog="python -m bench models", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of which the median counts")
    parser.add_argument("--only", default=",".join(_parts(ROUNDS)), help="what to measure, by comma")
    given = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    parts = _parts(given.rounds)
    chosen = given.only.split(",")
    if unknown := set(chosen) - set(parts):
        parser.error(f"--only knows {', '.join(parts)}, not {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    for name in chosen:
        step(f"models: {name}")
        figures += parts[name]()
    return show(figures, as_json=given.json)


def _parts(rounds: int) -> dict[str, Callable[[], list[Figure]]]:
    return {
        "decode": lambda: speed.decode(rounds),
        "prefill": lambda: speed.prefill(rounds),
        "poisson": lambda: speed.poisson(rounds),
        "repeat": lambda: speed.repeat(rounds),
        "memory": memory.measure,
    }
