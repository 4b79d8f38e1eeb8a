"""Reading the journal: the view at a revision or at a time, and every step from there on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pdcore.errors import PdcoreError, StoreError
from pdcore.registry.journal.chain import Tail, tail_of
from pdcore.registry.journal.entries import Entry, Gap, Piece
from pdcore.registry.journal.replay import Replayer, Step
from pdcore.registry.journal.stream import Stream


class NotKept(PdcoreError):
    """What was asked for is not known, and what is; a sentence for whoever asked."""


class JournalUnreadable(PdcoreError):
    """Trouble with the journal's Redis, or with what stands in it; the store is another matter."""


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise JournalUnreadable(f"cannot read the journal: {error}") from error


@dataclass(frozen=True, slots=True)
class End:
    """Up to ``revision`` the journal says everything that happened before ``time_ms``."""

    revision: int
    time_ms: int


class JournalReader:
    """Reads one stream that others write. Remembers nothing between two calls."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def beginning(self) -> Entry | None:
        """The first entry; with its snapshot the oldest view that is kept."""
        with _reading():
            return await self._stream.oldest()

    async def end(self) -> End | None:
        """How far the journal is; None when nothing was ever written."""
        with _reading():
            top, passed = await self._stream.newest(), await self._stream.passed()
        if top is None:
            return None
        if passed is None or passed.top != top.revision:
            return End(top.revision, top.time_ms)
        return End(max(top.revision, passed.revision), max(top.time_ms, passed.time_ms))

    async def replayed(self, revision: int) -> Replayer:
        """The view at ``revision``. Raises :class:`NotKept`."""
        end = await self.end()
        with _reading():
            head, behind = await self._stream.newest(revision), await self._stream.oldest(revision)
        if head is None or end is None or revision > end.revision:
            raise NotKept(f"the journal does not reach to revision {revision}")
        if isinstance(behind, Gap) and head.revision < revision:
            raise NotKept(
                f"revision {revision} is lost between {head.revision} and {behind.revision}: {behind.reason}"
            )
        return await self._replay(tail_of(head), revision)

    async def steps(self, after: Replayer) -> AsyncIterator[Step]:
        """Everything behind ``after``, in order."""
        with _reading():
            async for entry in self._stream.entries(after.revision + 1):
                step = after.take(entry)
                if step is not None:
                    yield step

    async def replayed_at(self, time_ms: int) -> tuple[Replayer, bool]:
        """The view at ``time_ms``, and whether something happened later. Raises :class:`NotKept`."""
        replayer = Replayer()
        with _reading():
            async for entry in self._stream.entries(await self._base_before(time_ms)):
                if replayer.based and not isinstance(entry, Piece) and entry.time_ms > time_ms:
                    if isinstance(entry, Gap):
                        raise NotKept(f"the journal lost what happened then: {entry.reason}")
                    return replayer, True
                replayer.take(entry)
        if not replayer.based:
            raise NotKept("the journal was trimmed while it was read; ask again")
        return replayer, False

    async def _replay(self, tail: Tail, revision: int) -> Replayer:
        replayer = Replayer()
        with _reading():
            async for entry in self._stream.entries(tail.base, revision):
                replayer.take(entry)
        if not replayer.based:
            raise NotKept(f"the journal does not reach back to revision {revision}")
        return replayer

    async def _base_before(self, time_ms: int) -> int:
        """The revision of the newest segment that began at ``time_ms`` or before."""
        top = await self._stream.newest()
        head = None if top is None else await self._stream.oldest(tail_of(top).base - 1)
        while head is not None and head.time_ms > time_ms:
            before = 0 if isinstance(head, Piece) else head.base
            head = await self._stream.oldest(before - 1) if before else None
            if head is not None and head.revision != before:
                head = None
        if head is None:
            raise NotKept("the journal does not reach back to then")
        return head.revision
