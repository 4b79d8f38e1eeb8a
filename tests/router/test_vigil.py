"""Silence is an instance's, not a request's, and every leg is told once when its instance is frozen."""

from __future__ import annotations

import pytest

from pdcore.router.vigil import Vigil

pytestmark = pytest.mark.unit
P, D = ("p", "i1"), ("d", "i1")


class Time:
    now_s = 0.0

    def now(self) -> float:
        return self.now_s


def test_an_instance_is_quiet_when_none_of_its_legs_hears_anything() -> None:
    vigil, time, told = Vigil(), Time(), list[str]()
    with (
        vigil.leg(P, time.now, lambda: told.append("a")) as one,
        vigil.leg(P, time.now, lambda: told.append("b")),
        vigil.leg(D, time.now, lambda: told.append("c")),
    ):
        time.now_s = 0.9
        one.heard()
        assert vigil.quiet(0.9, 1.0) == []
        assert vigil.quiet(1.5, 1.0) == [D]
        assert vigil.quiet(2.0, 1.0) == [P], "named once in that time"
        assert vigil.quiet(2.5, 1.0) == [D]
        vigil.fail(P)
        assert told == ["a", "b"]
        vigil.fail(("p", "i2"))
        assert told == ["a", "b"]


def test_who_has_no_leg_is_not_watched() -> None:
    vigil, time = Vigil(), Time()
    with vigil.leg(P, time.now, lambda: None) as leg:
        pass
    leg.heard()
    assert vigil.quiet(100, 1.0) == []
    time.now_s = 100
    with vigil.leg(P, time.now, lambda: None):
        assert vigil.quiet(100.5, 1.0) == [], "a new leg begins a new silence"
