"""The registry's figures at a small size: every step runs, and what must never happen does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.figures import Figure, limit, show
from bench.registry import measure
from bench.registry_cpu import lines_to_nowhere

pytestmark = pytest.mark.integration


@pytest.mark.cluster
async def test_every_figure_is_measured_and_no_view_is_wrong(tmp_path: Path) -> None:
    with lines_to_nowhere("warning"):
        figures = {one.name: one for one in await measure(tmp_path, instances=4, puts=30, routers=1)}
    assert figures["restarts: routers with a wrong view"].value == 0
    assert figures["restarts: relists and repairs"].value == 0
    assert figures["put → event in a router, p50"].value > 0
    assert {one.beside for one in figures.values()} >= {"limit", "bare watch", "nobody watches"}


def test_a_missed_bound_is_named_and_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    within = limit("within", 1.0, "µs", 2.0)
    slower = Figure(name="slower", value=3.0, unit="ms", beside="peer", reference=1.0, wanted=2.0)
    never = limit("never", 1.0, "", 0.0)
    assert show([within], as_json=False) == 0
    assert "MISSED" not in capsys.readouterr().out
    assert show([within, slower, never], as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "MISSED" in line] == ["slower", "never"]


def test_figures_are_told_as_json() -> None:
    one = Figure(name="a", value=3.0, unit="ms", beside="peer", reference=2.0)
    assert json.loads(json.dumps(one.document())) == one.document()
    assert (one.document()["ratio"], one.document()["met"]) == (1.5, True)
