"""Silence is an instance's, not a request's, and every leg is told once when its instance is frozen."""

from __future__ import annotations

import pytest

from pdcore.router.vigil import Vigil

pytestmark = pytest.mark.unit
P, D = ("p", "i1"), ("d", "i1")


class Leg:
    def __init__(self, told: list[str], name: str) -> None:
        self._told = told
        self._name = name

    def froze(self) -> None:
        self._told.append(self._name)


def test_an_instance_is_quiet_when_none_of_its_legs_hears_anything() -> None:
    vigil, told = Vigil(), list[str]()
    watched = vigil.begin(P, Leg(told, "a"), 0.0)
    assert vigil.begin(P, Leg(told, "b"), 0.5) is watched
    vigil.begin(D, Leg(told, "c"), 0.5)
    watched.heard_at = 0.9
    assert vigil.quiet(0.9, 1.0) == []
    assert vigil.quiet(1.5, 1.0) == [D]
    assert vigil.quiet(2.0, 1.0) == [P], "named once in that time"
    assert vigil.quiet(2.5, 1.0) == [D]
    vigil.fail(P)
    assert told == ["a", "b"]
    vigil.fail(("p", "i2"))
    assert told == ["a", "b"]


def test_who_has_no_leg_is_not_watched() -> None:
    vigil, leg = Vigil(), Leg([], "a")
    vigil.begin(P, leg, 0.0)
    vigil.end(P, leg)
    assert vigil.quiet(100, 1.0) == []
    vigil.begin(P, leg, 100.0)
    assert vigil.quiet(100.5, 1.0) == [], "a new leg begins a new silence"


def test_a_leg_may_end_as_it_is_told() -> None:
    vigil, told = Vigil(), list[str]()

    class Ends(Leg):
        def froze(self) -> None:
            super().froze()
            vigil.end(P, self)

    for name in "ab":
        vigil.begin(P, Ends(told, name), 0.0)
    vigil.fail(P)
    assert told == ["a", "b"]
    assert vigil.quiet(100, 1.0) == []
