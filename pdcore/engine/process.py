"""What any parent process needs around its life: signals, a private directory, tasks that end with a block."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from pdcore.beside import running_beside

OnSignal = Callable[[signal.Signals, int], None]

ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def runtime_directory() -> Iterator[Path]:
    """A private directory for this instance's unix sockets."""
    directory = Path(tempfile.mkdtemp(prefix="pdcore-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def beside(*works: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run all ``works`` as tasks while the block lasts."""
    async with AsyncExitStack() as stack:
        for work in works:
            await stack.enter_async_context(running_beside(work))
        yield


@asynccontextmanager
async def signals(on_signal: OnSignal) -> AsyncIterator[None]:
    """Hand SIGTERM and SIGINT to ``on_signal`` with how many have come, in the loop."""
    loop = asyncio.get_running_loop()
    count = itertools.count(1)
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, lambda got: on_signal(got, next(count)), number)
    try:
        yield
    finally:
        for number in ENDING_SIGNALS:
            loop.remove_signal_handler(number)
