from __future__ import annotations

import random

import pytest

from pdcore.engine.scheduler.deadlines import Deadlines

pytestmark = pytest.mark.unit


def test_the_late_are_named_once_and_the_cancelled_never() -> None:
    deadlines = Deadlines()
    for name, instant in (("b", 2.0), ("a", 1.0), ("c", 2.0), ("d", 3.0)):
        deadlines.add(name, instant)
    deadlines.cancel("c")
    assert list(deadlines.due(0.5)) == []
    assert list(deadlines.due(2.0)) == ["a", "b"]
    assert list(deadlines.due(2.5)) == []
    assert list(deadlines.due(9.0)) == ["d"]


def test_a_name_that_is_used_again_has_its_new_instant() -> None:
    deadlines = Deadlines()
    deadlines.add("a", 1.0)
    deadlines.cancel("a")
    deadlines.add("a", 5.0)
    assert list(deadlines.due(4.0)) == []
    assert list(deadlines.due(5.0)) == ["a"]


def test_requests_that_end_early_leave_nothing_behind() -> None:
    deadlines = Deadlines()
    dice = random.Random(1)
    for number in range(10_000):
        deadlines.add(str(number), 600 + dice.random())
        if number >= 10:
            deadlines.cancel(str(number - 10))
    assert len(deadlines._heap) < 200
    assert sorted(deadlines.due(1000)) == [str(n) for n in range(9990, 10_000)]
