"""Prefix affinity beside the Rust routers' trees, with one router and with four: ``python -m bench affinity``.

Without ``--live`` nothing is measured but the model in :mod:`bench.affinity.simulation`: the same figures everywhere.
With it the same traffic goes through real router processes, those of the Rust routers beside ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.affinity.lanes import SUBJECTS
from bench.affinity.live import replay
from bench.affinity.replacement import moved
from bench.affinity.routers import Affinity, Tree, Turns
from bench.affinity.simulation import Router, simulate
from bench.affinity.verdicts import BASE, FEW, FEW_SYSTEM_PROMPTS, MANY, OURS, Row, documents, table
from bench.affinity.workloads import WORKLOADS
from bench.progress import step

POLICIES: Final[Mapping[str, Callable[[int], Router]]] = {BASE: Turns, "trees": Tree, OURS: Affinity}
LIVE_SCALE: Final = 0.18
LIVE_SCALES: Final[Mapping[str, float]] = dict.fromkeys(FEW_SYSTEM_PROMPTS, 0.36)
LIVE_SPEED: Final = 1.5
"""What two busy cores can do in a quarter of an hour, three fleets at once; few system prompts take longest to fill caches."""


def compare(workload: str, scale: float) -> Row:
    """Every policy on ``workload``, of which ``scale`` is taken."""
    requests = WORKLOADS[workload](scale)
    outcomes = {
        (policy, routers): simulate(requests, routers, make)
        for policy, make in POLICIES.items()
        for routers in (FEW, MANY)
    }
    return Row(workload=workload, outcomes=outcomes, moved=moved(requests))


def compare_live(workload: str, scale: float, speed: float) -> Row:
    """The same through real processes of every router that is installed, all at once."""
    requests = WORKLOADS[workload](scale)
    subjects = [subject for subject in SUBJECTS if subject.installed]
    return Row(workload=workload, outcomes=replay(subjects, (FEW, MANY), requests, speed))


def main(arguments: Sequence[str]) -> int:
    """Print a table, or JSON lines; 1 when a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench affinity")
    parser.add_argument("--live", action="store_true", help="real router processes, in real time")
    parser.add_argument(
        "--scale",
        type=float,
        help="the share of each workload to run: 1; with --live 0.18, or 0.36 where it takes that",
    )
    parser.add_argument("--speed", type=float, default=LIVE_SPEED, help="how fast the clock of --live runs")
    parser.add_argument("--workload", default="", help="only those whose names contain this")
    parser.add_argument("--json", action="store_true", help="one line per outcome and verdict")
    given = parser.parse_args(arguments)
    if given.live:
        missing = [subject.name for subject in SUBJECTS if not subject.installed]
        step(f"not installed, so left out: {', '.join(missing)}" if missing else "all routers are there")
    rows = []
    for workload in (name for name in WORKLOADS if given.workload in name):
        step(workload)
        if given.live:
            scale = given.scale or LIVE_SCALES.get(workload, LIVE_SCALE)
            rows.append(compare_live(workload, scale, given.speed))
            slowed = max(one.slowed for one in rows[-1].outcomes.values())
            step(f"this machine let the clock run {slowed:.2f} times as slowly as it was to")
        else:
            rows.append(compare(workload, given.scale or 1.0))
    for line in map(json.dumps, documents(rows)) if given.json else table(rows):
        print(line)
    met = all(verdict.met for row in rows for verdict in row.verdicts())
    return 0 if met and not any(one.failed for row in rows for one in row.outcomes.values()) else 1
