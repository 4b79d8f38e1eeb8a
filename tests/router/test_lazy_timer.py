"""Timers that share one timer of the loop: each rings once, not early, and nothing is left of those that were dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pdcore.router import lazy_timer
from pdcore.router.lazy_timer import TICK_S, LazyTimer

pytestmark = pytest.mark.unit

WITHIN_S = 5.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def rung(*timers: asyncio.Event) -> None:
    async with asyncio.timeout(WITHIN_S):
        for one in timers:
            await one.wait()


def timer(*calls: Callable[[], object]) -> tuple[LazyTimer, asyncio.Event]:
    over = asyncio.Event()

    def ring() -> None:
        for call in calls:
            call()
        over.set()

    return LazyTimer(ring, now), over


async def test_each_rings_in_its_order_and_none_early() -> None:
    began, order = now(), list[int]()
    made = [timer(lambda number=number: order.append(number)) for number in range(20)]  # type: ignore[misc]
    for number, (one, _) in enumerate(made):
        one.set(began + 2 * TICK_S * (20 - number) / 4)
    await rung(*(over for _, over in made))
    assert sorted(order) == list(range(20))
    assert order[0] >= 18
    assert now() - began >= 2 * TICK_S * 20 / 4


async def test_one_that_rings_may_drop_move_and_set_those_of_its_turn() -> None:
    kept, kept_over = timer()
    dropped, dropped_over = timer()
    moved, moved_over = timer()

    def change() -> None:
        dropped.cancel()
        moved.set(None)
        moved.set(now() + 3 * TICK_S)

    first, first_over = timer(change)
    at = now() + TICK_S
    for one in (first, dropped, moved, kept):
        one.set(at)
    await rung(first_over, kept_over, moved_over)
    assert not dropped_over.is_set()
    assert now() >= at + 2 * TICK_S


async def test_one_that_fails_takes_no_other_along() -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def fail() -> None:
        raise ValueError("broken")

    broken, _ = timer(fail)
    beside, beside_over = timer()
    later, later_over = timer()
    at = now()
    for one in (broken, beside):
        one.set(at)
    later.set(at + TICK_S)
    await rung(beside_over, later_over)
    assert [str(one) for one in problems] == ["broken"]


async def test_nothing_goes_round_when_nothing_is_set() -> None:
    one, _ = timer()
    for after_s in (60.0, 30.0, 90.0):
        one.set(now() + after_s)
    one.cancel()
    assert lazy_timer._latest is not None
    assert not lazy_timer._latest._turns
    again, over = timer()
    again.set(now() - 1)
    await rung(over)


async def test_one_that_moves_on_rings_at_the_last_instant_only() -> None:
    instant, rings = 100.0, list[float]()
    over = asyncio.Event()

    def ring() -> None:
        rings.append(instant)
        over.set()

    one = LazyTimer(ring, lambda: instant)
    one.set(instant)  # it is due now, and looks at the clock when it has its turn
    one.set(instant + 0.001)
    await asyncio.sleep(3 * TICK_S)
    assert not rings, "the clock stands still"
    instant += 0.001
    await rung(over)
    assert rings == [instant]


async def test_one_that_is_set_earlier_rings_earlier() -> None:
    one, over = timer()
    one.set(now() + 60)
    one.set(now() + TICK_S)
    await rung(over)
