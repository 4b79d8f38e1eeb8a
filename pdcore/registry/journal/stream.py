"""One journal in Redis: a stream that entries are appended to only behind the entry they were made for.

``pdcore:{CLUSTER}:journal:STORE_ID`` is the stream, ``…:passed`` beside it says up to which revision nothing happened
after its newest entry. The braces are Redis' own: both keys lie in one slot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pdcore.config import StoreAccess
from pdcore.errors import StoreRefused
from pdcore.registry.journal.entries import Entry, decode, encode, part_of
from pdcore.registry.redis.connection import parse_redis_url, redis_call

if TYPE_CHECKING:
    from redis.asyncio import Redis

PAGE: Final = 32
FIELD: Final = b"entry"
UNUSED_S: Final = 30 * 86400
"""How long the journal of a store that nobody opens any more stays."""

APPEND: Final = """
local top = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local revision = top and string.match(top[1], '^%d+') or '0'
if revision ~= ARGV[1] then
  local same = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2], 'COUNT', 1)
  return {top and top[2][2] or '', #same}
end
for at = 3, #ARGV, 2 do
  redis.call('XADD', KEYS[1], ARGV[at], 'entry', ARGV[at + 1])
end
return false
"""
"""ARGV: the revision the top must have, the revision that is added, then id and JSON of each entry. False when they
are appended; else the top's JSON (empty without one) and whether the revision is there already."""

PASS: Final = """
local top = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if not top or string.match(top[1], '^%d+') ~= ARGV[1] then
  return
end
redis.call('HSET', KEYS[2], 'top', ARGV[1], 'revision', ARGV[2], 'time_ms', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
"""
"""ARGV: the revision the top must have, the revision that is passed, the time, when both keys may go."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was appended: ``top`` is another entry than expected; ``present`` says if the revision is there."""

    top: Entry | None
    present: bool


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing happened in the view between the revisions ``top`` and ``revision``, known at ``time_ms``.

    It speaks of a journal whose newest entry is ``top``; of one that lost or gained entries it says nothing.
    """

    top: int
    revision: int
    time_ms: int


class Stream(Protocol):
    """One journal. Each call has a deadline and raises StoreError."""

    async def append(self, expected: int, entries: Sequence[Entry]) -> Refused | None:
        """Append ``entries``, all or none, iff the newest entry has the revision ``expected`` (0: there is none).

        An answer that did not arrive leaves open whether they were appended; appending again is safe.
        """
        ...

    async def newest(self, at_most: int | None = None) -> Entry | None:
        """The newest entry, or the newest one at or before a revision."""
        ...

    async def oldest(self, after: int = 0) -> Entry | None:
        """The oldest entry behind revision ``after``."""
        ...

    def entries(self, first: int, last: int | None = None) -> AsyncIterator[Entry]:
        """Every entry from revision ``first`` to ``last``, whole revisions, in order."""
        ...

    async def passed(self) -> Passed | None:
        """See :class:`Passed`."""
        ...

    async def note_passed(self, passed: Passed) -> None:
        """Note it if the newest entry is still the one it speaks of."""
        ...

    async def trim(self, first: int) -> None:
        """Remove everything before revision ``first``."""
        ...


class RedisStream:
    """The journal of one store id. ``redis`` is open and belongs to the caller."""

    def __init__(self, redis: Redis, access: StoreAccess, cluster: str, store_id: str) -> None:
        self._redis = redis
        self._address = parse_redis_url(access.url).address
        self._timeout_s = access.timeout_s
        self.key = f"pdcore:{{{cluster}}}:journal:{store_id}"
        self._append = redis.register_script(APPEND)
        self._pass = redis.register_script(PASS)

    def __repr__(self) -> str:
        return f"<RedisStream {self.key} at {self._address}>"

    async def append(self, expected: int, entries: Sequence[Entry]) -> Refused | None:
        """See :class:`Stream`."""
        arguments: list[bytes | str | int] = [expected, entries[0].revision]
        for entry in entries:
            arguments += (f"{entry.revision}-{part_of(entry)}", encode(entry))
        refused = await self._call(self._append(keys=[self.key], args=arguments))
        if refused is None:
            return None
        top, present = cast("tuple[bytes, int]", refused)
        return Refused(decode(top) if top else None, bool(present))

    async def newest(self, at_most: int | None = None) -> Entry | None:
        """See :class:`Stream`."""
        last = "+" if at_most is None else str(at_most)
        return _first(await self._call(self._redis.xrevrange(self.key, last, "-", count=1)))

    async def oldest(self, after: int = 0) -> Entry | None:
        """See :class:`Stream`."""
        return _first(await self._call(self._redis.xrange(self.key, str(after + 1), "+", count=1)))

    async def entries(self, first: int, last: int | None = None) -> AsyncIterator[Entry]:
        """See :class:`Stream`."""
        start, end = str(first), "+" if last is None else str(last)
        while True:
            page = cast("list[Any]", await self._call(self._redis.xrange(self.key, start, end, count=PAGE)))
            for _, fields in page:
                yield _entry(fields)
            if len(page) < PAGE:
                return
            start = "(" + page[-1][0].decode()

    async def passed(self) -> Passed | None:
        """See :class:`Stream`."""
        command = self._redis.hmget(self._passed, ["top", "revision", "time_ms"])
        found = cast("list[bytes | None]", await self._call(cast("Awaitable[object]", command)))
        numbers = [int(one) for one in found if one is not None]
        return Passed(*numbers) if len(numbers) == len(found) else None

    async def note_passed(self, passed: Passed) -> None:
        """See :class:`Stream`."""
        arguments = [passed.top, passed.revision, passed.time_ms, UNUSED_S]
        await self._call(self._pass(keys=[self.key, self._passed], args=arguments))

    async def trim(self, first: int) -> None:
        """See :class:`Stream`."""
        await self._call(self._redis.xtrim(self.key, minid=f"{first}-0", approximate=False))

    @property
    def _passed(self) -> str:
        return f"{self.key}:passed"

    async def _call(self, command: Awaitable[object]) -> object:
        async with redis_call(self._address, self._timeout_s):
            return await command


def _first(page: object) -> Entry | None:
    found = cast("list[Any]", page)
    return _entry(found[0][1]) if found else None


def _entry(fields: object) -> Entry:
    """The entry among a stream entry's fields, a list of names and values or a map of them."""
    pairs = fields if isinstance(fields, dict) else {}
    line = pairs.get(FIELD)
    if not isinstance(line, bytes):
        raise StoreRefused("the journal holds something that is none of its entries")
    return decode(line)
