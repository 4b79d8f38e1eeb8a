"""Memory for single records on their way to decode, of the kind that KV is read from: a library may reach no other. And
what a thread owes that kind before a library reads it."""

from __future__ import annotations

import mmap
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from pdcore.engine.transfer.plan import Buffer

PAGE_BYTES: Final = 4096


class Pages(Protocol):
    """Makes pages. May be called from any thread."""

    def new(self) -> Buffer:
        """``PAGE_BYTES`` that nobody else has."""
        ...

    def put(self, page: Buffer, data: bytes) -> None:
        """``data`` at the beginning of ``page``; it is there on return."""
        ...

    def bound(self) -> AbstractContextManager[object]:
        """Within it the memory's device is the calling thread's: libraries ask the thread which one to use."""
        ...

    def settle(self) -> None:
        """Wait until everything that the device was told to compute is in memory; a library reads past its queue."""
        ...


class HostPages:
    """See :class:`Pages`."""

    def new(self) -> Buffer:
        """A page."""
        return memoryview(mmap.mmap(-1, PAGE_BYTES))

    def put(self, page: Buffer, data: bytes) -> None:
        """See :class:`Pages`."""
        assert isinstance(page, memoryview), "a page of the host"
        page[: len(data)] = data

    def bound(self) -> AbstractContextManager[object]:
        """Nothing to do."""
        return nullcontext()

    def settle(self) -> None:
        """Nothing to do: the CPU has computed what it was told when it returns."""


def pages_beside(source: Buffer) -> Pages:
    """Pages of the memory that ``source`` is of."""
    if isinstance(source, memoryview):
        return HostPages()
    # It loads torch, which whoever has a tensor has.
    from pdcore.engine.transfer.device_memory import DevicePages

    return DevicePages(source.device)
