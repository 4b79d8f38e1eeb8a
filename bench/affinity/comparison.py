"""Prefix affinity beside the Rust routers' trees, with one router and with four: ``python -m bench affinity``.

Nothing is measured but the model in :mod:`bench.affinity.simulation`: the same figures everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.affinity.routers import Affinity, Tree, Turns
from bench.affinity.simulation import Outcome, Router, simulate
from bench.affinity.workloads import WORKLOADS
from bench.progress import step

FEW: Final = 1
MANY: Final = 4
OURS: Final = "prefix_affinity"
BASE: Final = "round_robin"
POLICIES: Final[Mapping[str, Callable[[int], Router]]] = {BASE: Turns, "trees": Tree, OURS: Affinity}
FEW_SYSTEM_PROMPTS: Final = ("multi-turn, 5 system prompts", "multi-turn, 1 system prompt")
MOST_IMBALANCE: Final = 2.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload: the outcome by policy and number of routers. Rivals are all but ours and ``round_robin``."""

    workload: str
    outcomes: Mapping[tuple[str, int], Outcome]

    def missed(self) -> Iterator[str]:
        """Every promise that this workload breaks, beside the best of the rivals."""
        rivals = sorted({policy for policy, _ in self.outcomes} - {OURS, BASE})
        if not rivals:
            return
        best = {count: max(self._points(rival, count) for rival in rivals) for count in (FEW, MANY)}
        alone, ours = self._points(OURS, FEW), self._points(OURS, MANY)
        if ours < best[MANY] + 10:
            yield f"{MANY} routers: not 10 points above {best[MANY]:.1f}"
        if ours < alone - 2:
            yield f"{MANY} routers: more than 2 points below one router"
        if alone < best[FEW] - 10:
            yield f"one router: more than 10 points below {best[FEW]:.1f}"
        if self.workload in FEW_SYSTEM_PROMPTS and alone < best[FEW]:
            yield f"one router: below {best[FEW]:.1f} on few system prompts"
        mine = self.outcomes[OURS, MANY]
        if mine.p99_s > min(self.outcomes[rival, MANY].p99_s for rival in rivals):
            yield f"{MANY} routers: p99 of the first token above a rival's"
        if mine.imbalance > MOST_IMBALANCE:
            yield f"{MANY} routers: most over mean load above {MOST_IMBALANCE}"

    def _points(self, policy: str, routers: int) -> float:
        """Blocks found in a cache, per cent."""
        return 100 * self.outcomes[policy, routers].hit_rate


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
    parser.add_argument("--workload", default="", help="only those whose names contain this")
    parser.add_argument("--json", action="store_true", help="one line per workload and policy")
    given = parser.parse_args(arguments)
    rows = []
    for workload in (name for name in WORKLOADS if given.workload in name):
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
        for policy in dict.fromkeys(name for name, _ in row.outcomes):
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
