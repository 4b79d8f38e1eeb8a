"""A block that ends from outside ends once, quietly, and takes no other cancellation for its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pdcore.router.interrupt import Interrupt

pytestmark = pytest.mark.unit

FOR_EVER_S = 5.0


def soon(call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(call)


async def forever() -> None:
    async with asyncio.timeout(FOR_EVER_S):
        await asyncio.Event().wait()


async def test_the_first_reason_ends_the_block_and_the_task_goes_on() -> None:
    with Interrupt[str]() as interrupt:
        soon(lambda: interrupt.strike("first"))
        soon(lambda: interrupt.strike("second"))
        await forever()
        raise AssertionError("not reached")
    assert interrupt.reason == "first"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left that would cancel us here


async def test_a_block_that_ends_by_itself_has_no_reason() -> None:
    with Interrupt[str]() as interrupt:
        await asyncio.sleep(0)
    interrupt.strike("too late")
    await asyncio.sleep(0)
    assert interrupt.reason is None


async def test_a_block_cannot_strike_itself() -> None:
    with Interrupt[str]() as interrupt:
        interrupt.strike("myself")
        await asyncio.sleep(0)
    assert interrupt.reason is None


async def test_whoever_cancels_the_task_itself_is_obeyed() -> None:
    reached: list[str] = []

    async def work() -> None:
        with Interrupt[str]() as interrupt:
            soon(lambda: interrupt.strike("struck"))
            soon(task.cancel)
            await forever()
        reached.append("after the block")

    task = asyncio.ensure_future(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not reached


async def test_the_outer_of_two_ends_both() -> None:
    reached: list[str] = []
    with Interrupt[str]() as outer:
        with Interrupt[str]() as inner:
            soon(lambda: outer.strike("outer"))
            soon(lambda: inner.strike("inner"))
            await forever()
        reached.append("between the blocks")
    assert (outer.reason, inner.reason, reached) == ("outer", "inner", [])
    await asyncio.sleep(0)


async def test_the_inner_of_two_ends_only_itself() -> None:
    with Interrupt[str]() as outer:
        with Interrupt[str]() as inner:
            soon(lambda: inner.strike("inner"))
            await forever()
        await asyncio.sleep(0)
    assert outer.reason is None


async def test_a_failure_on_the_way_out_is_not_hidden() -> None:
    async def fails_while_it_ends() -> None:
        with Interrupt[str]() as interrupt:
            soon(lambda: interrupt.strike("struck"))
            try:
                await forever()
            finally:
                raise OSError("while closing")

    with pytest.raises(OSError, match="while closing"):
        await fails_while_it_ends()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
