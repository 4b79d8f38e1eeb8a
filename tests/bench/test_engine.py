"""The engine's figures at a small size: what needs no cluster is measured, and what is compared is the same work."""

from __future__ import annotations

import pytest

from bench import engine, engine_loop, engine_writes

pytestmark = pytest.mark.integration


def test_a_loop_is_measured_with_all_its_requests_and_its_parts_are_told() -> None:
    total, *parts = engine_loop.measure(steps=5)
    assert (total.value > 0, total.beside, total.reference) == (True, "limit", 0.3)
    assert "  scheduler.plan, mean" in {part.name for part in parts}


def test_writes_of_both_engines_are_told_beside_memmove() -> None:
    figures = engine_writes.measure(rounds=1)
    assert {figure.beside for figure in figures} == {"memmove"}
    assert [figure.name.split()[0] for figure in figures] == ["shm", "tcp"] * len(engine_writes.LISTS)


def test_only_what_was_asked_for_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        engine.main(["--only", "loop,handshakes"])
    assert "handshakes" in capsys.readouterr().err
