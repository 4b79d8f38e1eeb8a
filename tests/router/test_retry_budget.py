"""The largest of a fifth of the traffic, what was open at lost instances, and a handful."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.router.retry_budget import A_HANDFUL, RetryBudget
from pdcore.router.window import WINDOW_S

pytestmark = pytest.mark.unit

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

P, Q = ("p", "i1"), ("q", "i1")
T0 = 1000.0


def taken(budget: RetryBudget, now: float, *, at_most: int = 10_000) -> int:
    """How many retries it allows at ``now``."""
    return next((count for count in range(at_most) if not budget.take(now)), at_most)


def test_a_quiet_router_may_retry_a_handful() -> None:
    budget = RetryBudget()
    budget.came(T0)
    assert taken(budget, T0) == A_HANDFUL
    assert budget.denied == 1


def test_a_busy_one_a_fifth_of_what_came() -> None:
    budget = RetryBudget()
    for number in range(1000):
        budget.came(T0 + number * WINDOW_S / 1001)
    assert taken(budget, T0 + WINDOW_S - 0.1) == 200
    assert taken(budget, T0 + 3 * WINDOW_S) == A_HANDFUL, "of the last ten seconds"


def test_everybody_at_a_lost_instance_has_a_second_chance() -> None:
    budget = RetryBudget()
    for _ in range(100):
        budget.came(T0)
    budget.lost(P, 300, T0)
    for left in range(299, 0, -1):
        budget.lost(P, left, T0)  # as each leg ends, it reports how many are left
    assert budget.allowance(T0) == 300
    budget.lost(Q, 50, T0)
    assert taken(budget, T0) == 350
    assert budget.allowance(T0 + WINDOW_S) == A_HANDFUL


@few
@given(st.lists(st.tuples(st.sampled_from(["came", "take", "lost"]), st.floats(0, 3), st.integers(0, 40))))
def test_it_never_gives_more_in_ten_seconds_than_it_says(deeds: list[tuple[str, float, int]]) -> None:
    budget, now, given_at, most = RetryBudget(), T0, list[int](), 0
    for deed, pause_s, count in deeds:
        now += pause_s
        match deed:
            case "came":
                for _ in range(count):
                    budget.came(now)
            case "lost":
                budget.lost(P, count, now)
            case _:
                most = max(most, budget.allowance(now))
                if budget.take(now):
                    given_at.append(int(now))
        assert sum(1 for second in given_at if second > int(now) - WINDOW_S) <= max(most, A_HANDFUL)
