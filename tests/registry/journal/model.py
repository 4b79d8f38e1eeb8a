"""The journal's Redis as a small model: the same answers as the Lua on a real one, at once and without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from pdcore.registry.journal.entries import Entry, decode, encode, part_of
from pdcore.registry.journal.stream import Passed, Refused


@dataclass
class Journal:
    """One stream's content: places and lines, in order."""

    lines: list[tuple[tuple[int, int], bytes]] = field(default_factory=list)
    passed: Passed | None = None

    def copy(self) -> Journal:
        return Journal(list(self.lines), self.passed)


@dataclass
class ModelStream:
    """The stream of a journal that can be looked at and put back."""

    journal: Journal = field(default_factory=Journal)

    async def append(self, expected: int, entries: Sequence[Entry]) -> Refused | None:
        lines = self.journal.lines
        if (lines[-1][0][0] if lines else 0) != expected:
            present = any(place[0] == entries[0].revision for place, _ in lines)
            return Refused(decode(lines[-1][1]) if lines else None, present)
        for entry in entries:
            place = (entry.revision, part_of(entry))
            assert not lines or place > lines[-1][0], "Redis takes growing ids only"
            lines.append((place, encode(entry)))
        return None

    async def newest(self, at_most: int | None = None) -> Entry | None:
        for place, line in reversed(self.journal.lines):
            if at_most is None or place[0] <= at_most:
                return decode(line)
        return None

    async def oldest(self, after: int = 0) -> Entry | None:
        for place, line in self.journal.lines:
            if place[0] > after:
                return decode(line)
        return None

    async def entries(self, first: int, last: int | None = None) -> AsyncIterator[Entry]:
        for place, line in list(self.journal.lines):
            if first <= place[0] and (last is None or place[0] <= last):
                yield decode(line)

    async def passed(self) -> Passed | None:
        return self.journal.passed

    async def note_passed(self, passed: Passed) -> None:
        if self.journal.lines and self.journal.lines[-1][0][0] == passed.top:
            self.journal.passed = passed

    async def trim(self, first: int) -> None:
        self.journal.lines[:] = [one for one in self.journal.lines if one[0] >= (first, 0)]
