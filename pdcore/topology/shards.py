"""A map that is cheap to change without changing it.

A topology is replaced on every event, and its maps hold thousands of entries of which one or two differ. So a map is
a fixed row of small dictionaries: a change copies the row and the dictionaries it touches, everything else is shared.
With 1,000 entries that is 64 pointers and 16 entries instead of 1,000, and what two generations of a map share
is skipped by identity when they are compared; a map also knows in what it differs from the one it was made of, which is
the comparison that every event asks for. A plain dictionary would cost as much as all the rest of an event; a tree
would share more but is slower to read, and reading is what routers do.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import compress
from operator import is_not
from typing import Any, Final, Generic, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")

_SHARDS: Final = 64
_EMPTY_ROW: Final[tuple[dict[str, Any], ...]] = ({},) * _SHARDS


class ShardedMap(Mapping[str, V], Generic[V]):
    """An immutable mapping from names to values. Iteration has no meaningful order."""

    __slots__ = ("_count", "_mark", "_names", "_origin", "_row")

    def __init__(self) -> None:
        self._row: tuple[dict[str, V], ...] = _EMPTY_ROW
        self._count = 0
        self._mark = object()
        self._origin: object = (
            None  # the mark, not the map: a generation must not keep all earlier ones alive
        )
        self._names: list[str] = []  # what differs from the map with that mark

    def __getitem__(self, key: str) -> V:
        return self._row[hash(key) % _SHARDS][key]

    def __contains__(self, key: object) -> bool:
        return key in self._row[hash(key) % _SHARDS]

    @overload
    def get(self, key: str, default: None = None, /) -> V | None: ...

    @overload
    def get(self, key: str, default: V | T, /) -> V | T: ...

    def get(self, key: str, default: V | T | None = None, /) -> V | T | None:
        return self._row[hash(key) % _SHARDS].get(key, default)  # the inherited one catches a KeyError

    def __iter__(self) -> Iterator[str]:
        for shard in self._row:
            yield from shard

    def __len__(self) -> int:
        return self._count

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def items(self) -> ItemsView[str, V]:
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardedMap):
            return super().__eq__(other)
        return all(
            mine is theirs or mine == theirs for mine, theirs in zip(self._row, other._row, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ShardedMap({dict(sorted(self.items()))!r})"

    def updated(self, changes: Mapping[str, V | None]) -> ShardedMap[V]:
        """This map with every key of ``changes`` set to its value, or without it for None.

        Returns the very same map when nothing differs; values that are the same object do not.
        """
        if not changes:
            return self
        row = list(self._row)
        copied: set[int] = set()
        names: list[str] = []
        count = self._count
        for key, value in changes.items():
            index = hash(key) % _SHARDS
            held = row[index].get(key)
            if held is value:
                continue
            names.append(key)
            if index not in copied:
                row[index] = dict(row[index])
                copied.add(index)
            count += (value is not None) - (held is not None)
            if value is None:
                del row[index][key]
            else:
                row[index][key] = value
        if not names:
            return self
        made: ShardedMap[V] = ShardedMap.__new__(ShardedMap)
        made._row, made._count, made._mark = tuple(row), count, object()
        made._origin, made._names = self._mark, sorted(names)
        return made

    def changed(self, older: ShardedMap[V]) -> list[str]:
        """The names whose value is another object here than in ``older``, or is in one of the two only; sorted."""
        if self is older:
            return []
        if self._origin is older._mark:
            return list(self._names)
        names: set[str] = set()
        pairs = zip(self._row, older._row, strict=True)
        for mine, theirs in compress(pairs, map(is_not, self._row, older._row)):
            names.update(k for k in mine.keys() | theirs.keys() if mine.get(k) is not theirs.get(k))
        return sorted(names)


class _Values(ValuesView[V]):
    """Walks the row instead of looking every name up."""

    _mapping: ShardedMap[V]

    def __iter__(self) -> Iterator[V]:
        for shard in self._mapping._row:
            yield from shard.values()


class _Items(ItemsView[str, V]):
    """Walks the row instead of looking every name up."""

    _mapping: ShardedMap[V]

    def __iter__(self) -> Iterator[tuple[str, V]]:
        for shard in self._mapping._row:
            yield from shard.items()
