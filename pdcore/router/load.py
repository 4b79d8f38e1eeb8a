"""What this router itself has open, per instance: the only load it knows for certain.

Mutable state: ``_open`` (legs per instance, never negative, no entry for zero) and ``_uses`` (when an instance or a
pair was last picked). Both change only in :meth:`Ledger.take` and in a hold's release, without an await in between.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType
from typing import Self

from pdcore.router.pick import Pick


class Hold:
    """One leg counted at one instance. Released once, however often it is asked to; a context manager."""

    def __init__(self, ledger: Ledger, instance_id: str) -> None:
        self._ledger = ledger
        self._instance_id = instance_id
        self._held = True

    def release(self) -> None:
        """Stop counting this leg."""
        if self._held:
            self._held = False
            self._ledger._give_back(self._instance_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Ledger:
    """Counts open legs and remembers whose turn it was; implements :class:`pdcore.router.pick.Load`."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._uses: dict[tuple[str, ...], int] = {}
        self._turn = 0

    def take(self, pick: Pick) -> dict[str, Hold]:
        """Count every leg of ``pick`` from this moment; the holds by instance id."""
        self._turn += 1
        names = tuple(one.instance_id for one in pick.instances)
        for name in names:
            self._open[name] = self._open.get(name, 0) + 1
            self._uses[(name,)] = self._turn
        self._uses[names] = self._turn
        return {name: Hold(self, name) for name in names}

    def forget(self, known: Collection[str]) -> None:
        """Drop the turns of instances that are not ``known`` any more; open legs stay until they end."""
        self._uses = {names: turn for names, turn in self._uses.items() if all(n in known for n in names)}

    def in_flight(self, instance_id: str) -> int:
        """Legs open at the instance."""
        return self._open.get(instance_id, 0)

    def last_use(self, *instance_ids: str) -> int:
        """The turn at which this instance, or this pair, was picked last; 0 for never."""
        return self._uses.get(instance_ids, 0)

    @property
    def total(self) -> int:
        """Legs open altogether."""
        return sum(self._open.values())

    def _give_back(self, instance_id: str) -> None:
        left = self._open[instance_id] - 1
        if left:
            self._open[instance_id] = left
        else:
            del self._open[instance_id]
