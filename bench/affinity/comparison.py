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
from bench.affinity.verdicts import BASE, FEW, MANY, OURS, Row, documents, table
from bench.affinity.workloads import WORKLOADS
from bench.progress import step

POLICIES: Final[Mapping[str, Callable[[int], Router]]] = {BASE: Turns, "trees": Tree, OURS: Affinity}
LIVE_SCALE: Final = 0.25
LIVE_SPEED: Final = 0.75
"""What two busy cores can do in a quarter of an hour: six fleets at once."""


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
    which = [(subject, routers) for subject in SUBJECTS if subject.installed for routers in (FEW, MANY)]
    return Row(workload=workload, outcomes=replay(which, requests, speed))


def main(arguments: Sequence[str]) -> int:
    """Print a table, or JSON lines; 1 when a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench affinity")
    parser.add_argument("--live", action="store_true", help="real router processes, in real time")
    parser.add_argument(
        "--scale", type=float, help=f"the share of each workload to run: 1, with --live {LIVE_SCALE}"
    )
    parser.add_argument("--speed", type=float, default=LIVE_SPEED, help="how fast the clock of --live runs")
    parser.add_argument("--workload", default="", help="only those whose names contain this")
    parser.add_argument("--json", action="store_true", help="one line per outcome and verdict")
    given = parser.parse_args(arguments)
    if given.live:
        missing = [subject.name for subject in SUBJECTS if not subject.installed]
        step(f"not installed, so left out: {', '.join(missing)}" if missing else "all routers are there")
    scale = given.scale or (LIVE_SCALE if given.live else 1.0)
    rows = []
    for workload in (name for name in WORKLOADS if given.workload in name):
        step(workload)
        rows.append(compare_live(workload, scale, given.speed) if given.live else compare(workload, scale))
    for line in map(json.dumps, documents(rows)) if given.json else table(rows):
        print(line)
    met = all(verdict.met for row in rows for verdict in row.verdicts())
    return 0 if met and not any(one.failed for row in rows for one in row.outcomes.values()) else 1
