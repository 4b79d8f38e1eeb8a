"""Starts again after 0, 10, 20, 40 … 300 s; three ends within five minutes are an error."""

from __future__ import annotations

import pytest

from pdcore.group.control.backoff import Exits, delay_s

pytestmark = pytest.mark.unit


def test_delays_double_from_ten_seconds_to_five_minutes() -> None:
    assert [delay_s(n) for n in range(1, 9)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert delay_s(10_000) == 300


def test_three_ends_in_five_minutes_are_an_error() -> None:
    exits = Exits()
    for at, failed in ((0.0, False), (10.0, False), (299.0, True)):
        exits = exits.after(at, status=1, lived_s=1.0)
        assert exits.failed is failed
    assert exits.again_at == 299.0 + 20


def test_ends_far_apart_are_none() -> None:
    exits = Exits()
    for at in (0.0, 200.0, 400.0, 600.0):
        exits = exits.after(at, status=1, lived_s=1.0)
    assert not exits.failed
    assert exits.count == 4


def test_a_run_that_lasted_starts_the_count_again() -> None:
    exits = Exits().after(0.0, status=1, lived_s=1.0).after(10.0, status=1, lived_s=1.0)
    assert exits.after(1000.0, status=1, lived_s=300.0) == Exits((1000.0,))


def test_a_member_that_was_given_what_cannot_work_fails_at_once_and_is_tried_again() -> None:
    exits = Exits().after(5.0, status=2, lived_s=0.5)
    assert exits.failed
    assert exits.again_at == 5.0
