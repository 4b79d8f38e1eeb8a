from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.scheduler.chunks import share, share_with_recomputed

pytestmark = pytest.mark.unit

PENDING = st.lists(st.integers(1, 300), max_size=12)


@pytest.mark.parametrize(
    ("pending", "budget", "shares"),
    [
        ([5, 5, 5], 8, [5, 3, 0]),
        ([100, 2, 3], 10, [5, 2, 3]),
        ([100, 2], 10, [8, 2]),
        ([100, 50, 3], 10, [5, 2, 3]),
        ([100], 10, [10]),
        ([7, 1], 1, [1, 0]),
        ([], 10, []),
        ([4], 0, [0]),
    ],
)
def test_the_oldest_goes_on_and_the_shortest_pass(pending: list[int], budget: int, shares: list[int]) -> None:
    assert share(pending, budget) == shares


@settings(max_examples=40, deadline=None)
@given(PENDING, st.integers(0, 500))
def test_a_budget_is_spent_as_far_as_there_is_work_and_never_exceeded(
    pending: list[int], budget: int
) -> None:
    shares = share(pending, budget)
    assert sum(shares) == min(budget, sum(pending))
    assert all(0 <= part <= whole for part, whole in zip(shares, pending, strict=True))
    if pending:
        assert shares[0] >= min(pending[0], budget // 2), "the oldest never stands still"


@settings(max_examples=40, deadline=None)
@given(PENDING, PENDING, st.integers(1, 500))
def test_the_recomputed_come_last_but_not_never(fresh: list[int], again: list[int], budget: int) -> None:
    first, second = share_with_recomputed(fresh, again, budget)
    assert sum(first) + sum(second) == min(budget, sum(fresh) + sum(again))
    if again:
        assert sum(second) >= 1
    if sum(fresh) >= budget:
        assert sum(second) <= max(1, budget // 8), "no more than their share while others wait"


@settings(max_examples=40, deadline=None)
@given(PENDING.filter(len), st.integers(1, 64))
def test_every_prompt_ends_and_the_oldest_within_twice_its_time_alone(
    pending: list[int], budget: int
) -> None:
    left, steps, oldest_done = list(pending), 0, 0
    while any(left):
        shares = share([n for n in left if n], budget)
        for index, part in zip([i for i, n in enumerate(left) if n], shares, strict=True):
            left[index] -= part
        steps += 1
        if left[0] and not oldest_done:
            continue
        oldest_done = oldest_done or steps
    assert steps <= -(-sum(pending) // budget) + len(pending)
    assert oldest_done <= 2 * -(-pending[0] // budget)
