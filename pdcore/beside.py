"""One task beside a block of code, owned by the block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager


@asynccontextmanager
async def running_beside(work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run ``work`` as a task while the block lasts; leaving cancels it and waits for its end.

    An exception of the block leaves as it is, and a generator around it may be closed. An exception of
    ``work`` cancels the block and leaves as the task group's ExceptionGroup.
    """
    failure: Exception | GeneratorExit | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        try:
            yield
        except (Exception, GeneratorExit) as error:
            failure = error  # not swallowed: raised below, outside the group, which would wrap it
        finally:
            task.cancel()
    if failure is not None:
        raise failure
