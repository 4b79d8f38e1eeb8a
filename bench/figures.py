"""A measured figure beside the limit or the peer it is judged by, as an aligned table or as JSON."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``value`` beside ``reference``, both in ``unit``. ``wanted`` is the largest ratio of the two that will do."""

    name: str
    value: float
    unit: str
    beside: str
    reference: float
    wanted: float | None = None

    @property
    def ratio(self) -> float:
        """The value by the reference; nothing by nothing is 0, anything else by it is endless."""
        if self.reference:
            return self.value / self.reference
        return math.inf if self.value else 0.0

    @property
    def met(self) -> bool:
        """Whether the ratio is one that will do."""
        return self.wanted is None or self.ratio <= self.wanted

    def document(self) -> dict[str, object]:
        """As a JSON object; an endless ratio is null."""
        ratio = self.ratio if math.isfinite(self.ratio) else None
        return asdict(self) | {"ratio": ratio, "met": self.met}


def limit(name: str, value: float, unit: str, at_most: float) -> Figure:
    """A figure that has a limit of its own."""
    return Figure(name=name, value=value, unit=unit, beside="limit", reference=at_most, wanted=1.0)


def show(figures: Sequence[Figure], *, as_json: bool) -> int:
    """Print ``figures``; the exit status: 1 when one is not met."""
    if as_json:
        print(json.dumps([one.document() for one in figures]))
    else:
        _print_table([("figure", "measured", "", "beside", "", "ratio", "wanted", ""), *map(_row, figures)])
    return 0 if all(one.met for one in figures) else 1


def _row(one: Figure) -> tuple[str, ...]:
    wanted = "" if one.wanted is None else f"≤ {one.wanted:g}"
    verdict = "" if one.wanted is None else "met" if one.met else "MISSED"
    return (
        *(one.name, f"{one.value:,.2f}", one.unit, one.beside, f"{one.reference:,.2f}", f"{one.ratio:.2f}"),
        *(wanted, verdict),
    )


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    to_the_right = {1, 4, 5}
    for row in rows:
        cells = (
            cell.rjust(width) if column in to_the_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def quantile(values: Sequence[float], percent: int) -> float:
    """The ``percent``-th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
