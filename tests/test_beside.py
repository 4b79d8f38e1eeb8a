"""A task beside a block ends with the block, however that is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from pdcore.beside import running_beside

pytestmark = pytest.mark.unit


class Work:
    """Runs for ever, and says whether it still does."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = False

    async def run(self) -> None:
        try:
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def numbers(work: Work) -> AsyncGenerator[int, None]:
    async with running_beside(work.run()):
        await work.started.wait()
        yield 1
        yield 2


async def test_an_exception_of_the_block_leaves_as_it_is() -> None:
    work = Work()

    async def block() -> None:
        async with running_beside(work.run()):
            await work.started.wait()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await block()
    assert work.ended


async def test_a_generator_around_the_block_can_be_closed() -> None:
    work = Work()
    async with aclosing(numbers(work)) as opened:
        assert await anext(opened) == 1
        assert not work.ended
    assert work.ended


async def test_an_exception_of_the_work_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError("its own")

    with pytest.raises(ExceptionGroup) as raised:
        async with running_beside(fail()):
            await asyncio.Event().wait()
    assert [str(error) for error in raised.value.exceptions] == ["'its own'"]
