"""A block that somebody else may end. Cheaper than a task per thing to wait for.

It cancels the task inside, as ``asyncio.timeout`` does, and takes that one cancellation back when the block is left; a
cancellation of anybody else passes through. Blocks nest. One has to be left by the task that entered it.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generic, Self, TypeVar

ReasonT = TypeVar("ReasonT")


class Interrupt(Generic[ReasonT]):
    """``with``: the block ends quietly, where it waits, once :meth:`strike` was called; ``reason`` says why.

    A strike out of the block itself does nothing: the block can simply end.
    """

    __slots__ = ("_cancelling", "_struck", "_task", "reason")

    def __init__(self) -> None:
        self.reason: ReasonT | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._struck = False

    def strike(self, reason: ReasonT) -> None:
        """End the block; the first reason counts, and none after the block."""
        if self._task is not None and not self._struck and asyncio.current_task() is not self._task:
            self._struck = True
            self.reason = reason
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None, "there is nothing to interrupt outside a task"
        self._cancelling = self._task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if not self._struck or task is None:
            return False
        last = task.uncancel() <= self._cancelling
        return last and kind is not None and issubclass(kind, asyncio.CancelledError)
