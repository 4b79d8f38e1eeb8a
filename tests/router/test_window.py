"""A window counts what the last ten whole seconds held, like a list that is searched, only cheaper."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.window import WINDOW_S, Window

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

steps = st.lists(st.tuples(st.floats(0, 25), st.integers(0, 3)), max_size=30)


@few
@given(st.floats(0, 1e6), steps)
def test_it_counts_what_a_list_would(start: float, steps: list[tuple[float, int]]) -> None:
    window, seen, now = Window(), list[tuple[int, int]](), start
    for pause_s, count in steps:
        now += pause_s
        window.add(now, count)
        seen.append((int(now), count))
        expected = sum(count for second, count in seen if second > int(now) - WINDOW_S)
        assert window.total(now) == expected
    assert window.total(now + WINDOW_S) == 0


def test_an_instant_a_little_back_counts_as_now() -> None:
    window = Window()
    window.add(20.5)
    window.add(19.9)
    assert window.total(20.6) == 2
