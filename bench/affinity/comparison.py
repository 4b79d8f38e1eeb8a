"""Prefix affinity beside the trees of the Rust routers, with one router and with four: ``python -m bench affinity``.

Nothing is measured but the model in :mod:`bench.affinity.simulation`; the same seed gives the same figures everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.affinity.routers import Affinity, Tree, Turns
from bench.affinity.simulation import Outcome, Router, simulate
from bench.affinity.workloads import WORKLOADS
from bench.progress import step

FEW: Final = 1
MANY: Final = 4
POLICIES: Final[dict[str, Callable[[int], Router]]] = {
    "round_robin": Turns,
    "trees": Tree,
    "prefix_affinity": Affinity,
}
MOST_IMBALANCE: Final = 2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload: the outcome by policy and number of routers."""

    workload: str
    outcomes: dict[tuple[str, int], Outcome]

    def points(self, policy: str, routers: int) -> float:
        """Blocks found in a cache, per cent."""
        return 100 * self.outcomes[policy, routers].hit_rate

    def missed(self) -> Iterator[str]:
        """Every promise that this workload breaks."""
        ours, theirs = self.points("prefix_affinity", MANY), self.points("trees", MANY)
        alone, their_alone = self.points("prefix_affinity", FEW), self.points("trees", FEW)
        if ours < theirs + 10:
            yield f"{MANY} routers: not 10 points above trees"
        if ours < alone - 2:
            yield f"{MANY} routers: more than 2 points below one router"
        if alone < their_alone - 10:
            yield "one router: more than 10 points below one tree"
        if self.workload in ("multi-turn, 5 system prompts", "multi-turn, 1 system prompt"):
            if alone < their_alone:
                yield "one router: below one tree on few system prompts"
        mine, trees = self.outcomes["prefix_affinity", MANY], self.outcomes["trees", MANY]
        if mine.p99_s > trees.p99_s:
            yield f"{MANY} routers: p99 of the first token above that of trees"
        if mine.imbalance > MOST_IMBALANCE:
            yield f"{MANY} routers: most over mean load above {MOST_IMBALANCE}"


def compare(workload: str, scale: float) -> Row:
    """Every policy on ``workload``, of which ``scale`` is taken."""
    requests = WORKLOADS[workload](scale)
    outcomes = {
        (policy, routers): simulate(requests, routers, make)
        for policy, make in POLICIES.items()
        for routers in (FEW, MANY)
    }
    return Row(workload=workload, outcomes=outcomes)


def main(arguments: Sequence[str]) -> int:
    """Print a table, or JSON lines; 1 when a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench affinity")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of each workload to run")
    parser.add_argument("--json", action="store_true", help="one line per workload and policy")
    given = parser.parse_args(arguments)
    rows = []
    for workload in WORKLOADS:
        step(workload)
        rows.append(compare(workload, given.scale))
    for line in _documents(rows) if given.json else _lines(rows):
        print(line)
    missed = [f"{row.workload}: {sentence}" for row in rows for sentence in row.missed()]
    for sentence in missed:
        print(f"MISSED {sentence}", file=sys.stderr)
    return 1 if missed else 0


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield "blocks found in a cache (%), p99 of the first token (ms), most over mean load; 1 router → 4 routers"
    for row in rows:
        yield f"\n{row.workload}"
        for policy in POLICIES:
            few, many = row.outcomes[policy, FEW], row.outcomes[policy, MANY]
            yield (
                f"  {policy:16} {100 * few.hit_rate:5.1f} → {100 * many.hit_rate:5.1f}"
                f"   {1000 * few.p99_s:7.0f} → {1000 * many.p99_s:7.0f}"
                f"   {few.imbalance:.2f} → {many.imbalance:.2f}"
            )


def _documents(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for (policy, routers), outcome in row.outcomes.items():
            figures = {
                "hit_rate": outcome.hit_rate,
                "p50_s": outcome.p50_s,
                "p99_s": outcome.p99_s,
                "imbalance": outcome.imbalance,
            }
            yield json.dumps({"workload": row.workload, "policy": policy, "routers": routers, **figures})
