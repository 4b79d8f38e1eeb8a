"""What stands on other things that are opened with it: opening its parts, and, for a sender, handing calls on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pdcore.engine.transfer.engine import Linked, Lost, Sender
from pdcore.engine.transfer.plan import WriteOps


class Parts:
    """Opened by ``with``: :meth:`enter` opens the parts, leaving closes them in reverse order, also half-way.

    Mutable: ``_stack``, what is open.
    """

    _stack: ExitStack

    def enter(self, stack: ExitStack) -> None:
        """Open every part on ``stack``."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class SenderOver(Parts):
    """A :class:`pdcore.engine.transfer.engine.Sender` that hands every call on to ``inner``, which it opens."""

    def __init__(self, inner: Sender) -> None:
        self._inner = inner

    def enter(self, stack: ExitStack) -> None:
        """Open ``inner``."""
        stack.enter_context(self._inner)

    def endpoint(self) -> dict[str, object]:
        """See the seam."""
        return self._inner.endpoint()

    def drain(self) -> Sequence[Linked | Lost]:
        """See the seam."""
        return self._inner.drain()

    def pollables(self) -> list[int]:
        """See the seam."""
        return self._inner.pollables()

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """See the seam."""
        self._inner.write(token, ops, seq)

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """See the seam."""
        self._inner.write_bytes(token, offset, data, seq)

    def inline_bytes(self, token: bytes) -> int:
        """None unless a subclass knows that nothing waits in front of ``inner``."""
        return 0

    def ring(self, token: bytes, seq: int) -> bool:
        """See the seam."""
        return self._inner.ring(token, seq)

    def announce(self, token: bytes) -> None:
        """See the seam."""
        self._inner.announce(token)

    def release(self, token: bytes) -> None:
        """See the seam."""
        self._inner.release(token)
