"""What a comparison says: one table, and each promise beside what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from bench.affinity.replacement import Moved
from bench.affinity.simulation import Outcome

FEW: Final = 1
MANY: Final = 4
OURS: Final = "prefix_affinity"
BASE: Final = "round_robin"
FEW_SYSTEM_PROMPTS: Final = ("multi-turn, 5 system prompts", "multi-turn, 1 system prompt")
MOST_IMBALANCE: Final = 2.1
MORE_POINTS: Final = 10.0
LOST_POINTS: Final = 2.0
MOST_MOVED: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``value`` in ``unit``: at least ``least`` if there is one, at most ``most`` if there is one."""

    promise: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        """Whether it is within both."""
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    @property
    def wanted(self) -> str:
        """The bound, for people; nothing where there is none."""
        if self.least is not None:
            return f"≥ {self.least:g}"
        return "" if self.most is None else f"≤ {self.most:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload: the outcome by policy and number of routers. Rivals are all but ours and ``round_robin``."""

    workload: str
    outcomes: Mapping[tuple[str, int], Outcome]
    moved: Moved | None = None

    def verdicts(self) -> Iterator[Verdict]:
        """Every promise beside what was measured."""
        yield from self._beside_rivals()
        if self.moved is not None:
            yield Verdict(
                promise="one of 8 replaced, conversations that move",
                value=100 * self.moved.inherited,
                unit="%",
                most=MOST_MOVED,
            )
            yield Verdict(
                promise="the same by instance ids alone, under the same one",
                value=100 * self.moved.same_id,
                unit="%",
                most=MOST_MOVED,
            )
            yield Verdict(promise="and under another one", value=100 * self.moved.other_id, unit="%")

    def _beside_rivals(self) -> Iterator[Verdict]:
        """Each figure beside the best of the rivals in it; none without rivals."""
        rivals = sorted({policy for policy, _ in self.outcomes} - {OURS, BASE})
        if not rivals:
            return
        best = {count: max(self._points(rival, count) for rival in rivals) for count in (FEW, MANY)}
        alone, ours, mine = self._points(OURS, FEW), self._points(OURS, MANY), self.outcomes[OURS, MANY]
        p99_s = min(self.outcomes[rival, MANY].p99_s for rival in rivals)
        yield Verdict(
            promise="4 routers, hits beyond the best rival's",
            value=ours - best[MANY],
            unit="points",
            least=MORE_POINTS,
        )
        yield Verdict(
            promise="4 routers, hits beyond one router's",
            value=ours - alone,
            unit="points",
            least=-LOST_POINTS,
        )
        yield Verdict(
            promise="1 router, hits beyond the best rival's",
            value=alone - best[FEW],
            unit="points",
            least=0.0 if self.workload in FEW_SYSTEM_PROMPTS else -MORE_POINTS,
        )
        yield Verdict(
            promise="4 routers, p99 of the first token by the best rival's",
            value=mine.p99_s / p99_s,
            unit="times",
            most=1.0,
        )
        yield Verdict(
            promise="4 routers, most over mean load", value=mine.imbalance, unit="times", most=MOST_IMBALANCE
        )

    def _points(self, policy: str, routers: int) -> float:
        """Blocks found in a cache, per cent."""
        return 100 * self.outcomes[policy, routers].hit_rate


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Every outcome with 1 and with 4 routers, then every verdict, each in aligned columns. Latencies are to first tokens."""
    figures = ("hits %: 1", "4", "p99 ms: 1", "4", "by the wall: 1", "4", "most/mean: 1", "4", "failed")
    head = ("workload", "policy", *figures)
    yield from _aligned([head, *(line for row in rows for line in _outcomes(row))], left=2)
    yield ""
    yield from _aligned(
        [
            ("workload", "promise", "measured", "", "wanted", ""),
            *(line for row in rows for line in _verdicts(row)),
        ],
        left=2,
    )


def documents(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    """The same for programs, one object per outcome and per verdict."""
    for row in rows:
        for (policy, routers), outcome in row.outcomes.items():
            figures = {
                "hit_rate": outcome.hit_rate,
                "p50_s": outcome.p50_s,
                "p99_s": outcome.p99_s,
                "imbalance": outcome.imbalance,
                "failed": outcome.failed,
                "wall_p99_s": outcome.wall_p99_s,
                "slowed": outcome.slowed,
            }
            yield {"workload": row.workload, "policy": policy, "routers": routers, **figures}
        for verdict in row.verdicts():
            yield {"workload": row.workload, **asdict(verdict), "met": verdict.met}


def _outcomes(row: Row) -> Iterator[Sequence[str]]:
    named = row.workload
    for policy in dict.fromkeys(policy for policy, _ in row.outcomes):
        both = [row.outcomes[policy, routers] for routers in (FEW, MANY)]
        yield (
            *(named, policy, *(f"{100 * one.hit_rate:.1f}" for one in both)),
            *(f"{1000 * one.p99_s:.0f}" for one in both),
            *(f"{1000 * one.wall_p99_s:.0f}" if one.wall_p99_s else "" for one in both),
            *(f"{one.imbalance:.2f}" for one in both),
            str(sum(one.failed for one in both)),
        )
        named = ""


def _verdicts(row: Row) -> Iterator[Sequence[str]]:
    named = row.workload
    for one in row.verdicts():
        value = f"{one.value:+.1f}" if one.unit == "points" else f"{one.value:.2f}"
        yield named, one.promise, value, one.unit, one.wanted, _judgement(one)
        named = ""


def _judgement(one: Verdict) -> str:
    return ("met" if one.met else "MISSED") if one.wanted else ""


def _aligned(lines: Sequence[Sequence[str]], *, left: int) -> Iterator[str]:
    """``lines`` in columns, the first ``left`` of them flush left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
