"""The figures that fault runs end with: one row each, shown as one table after the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_rows: list[tuple[str, Mapping[str, str]]] = []


def show(row: str, **figures: float | str) -> None:
    """Add a row to the table."""
    _rows.append((row, {name: _text(value) for name, value in figures.items()}))


def table() -> Sequence[str]:
    """The table's lines; none without rows."""
    columns = list(dict.fromkeys(name for _, figures in _rows for name in figures))
    if not columns:
        return ()
    cells = [["", *columns], *([row, *(figures.get(name, "") for name in columns)] for row, figures in _rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_aligned(line, widths)).rstrip() for line in cells]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(line, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def _text(value: float | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
