"""The store contract: what the keyspace needs from etcd, and what every driver keeps to.

A store is a map of keys to values with one growing ``revision``; a transaction that changes something makes one
new revision, and a watch hands over whole revisions in order. Keys may hang on a lease and vanish with it, all in one
revision. ``tests/registry/store_contract.py`` is this contract as a suite.

Every call has a deadline of the store's own configuration and raises :class:`~pdcore.errors.StoreUnavailable` when it
passes. A timed-out ``commit`` may have happened: read again, never repeat blindly.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from pdcore.errors import StoreRefused

MAX_WRITES: Final = 128
"""Most conditions, and most writes, of one transaction (etcd's default limit); more are refused."""

LeaseId = NewType("LeaseId", int)


@dataclass(frozen=True, slots=True)
class Stored:
    """One key's value and the revision that wrote it. ``create_revision`` tells a re-created key from a changed one."""

    value: bytes
    mod_revision: int
    create_revision: int
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every key under a prefix, all at ``revision``."""

    revision: int
    entries: Mapping[str, Stored]


@dataclass(frozen=True, slots=True)
class Change:
    """A put (``stored``) or a delete (``stored is None``) of ``key``."""

    key: str
    stored: Stored | None


@dataclass(frozen=True, slots=True)
class Revision:
    """Everything under the watched prefix that changed at ``revision``, whole; never empty."""

    revision: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """Proof of life. A watch's first message (connected; what was missed follows), and again after a silence, when it
    has delivered everything up to now.

    ``revision`` is the store's position as far as the server told; only a floor for detecting a step back.
    """

    revision: int


WatchMessage = Revision | Alive


@dataclass(frozen=True, slots=True)
class Absent:
    """True iff ``key`` does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class ValueIs:
    """True iff ``key`` exists with exactly this value."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class ModRevisionIs:
    """True iff ``key``'s last write was at this revision."""

    key: str
    mod_revision: int


Condition = Absent | ValueIs | ModRevisionIs


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``key``; it vanishes with ``lease`` if one is given."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove ``key`` if it is there."""

    key: str


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """How a transaction went: ``succeeded`` iff every condition held; ``revision`` is the store's afterwards."""

    succeeded: bool
    revision: int


def check_transaction(conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> None:
    """Raises :class:`~pdcore.errors.StoreRefused` for what no store takes."""
    keys = [write.key for write in writes]
    if len(set(keys)) != len(keys):
        raise StoreRefused("a key occurs twice among the writes of one transaction")
    if max(len(conditions), len(writes)) > MAX_WRITES:
        raise StoreRefused(f"more than {MAX_WRITES} conditions or writes in one transaction")


class Store(Protocol):
    """A driver. Opened by ``async with``; leaving ends its connections, not its leases."""

    async def __aenter__(self) -> Store: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def list(self, prefix: str) -> Snapshot:
        """Every key under ``prefix`` at one revision (linearizable)."""
        ...

    async def get(self, key: str) -> Stored | None:
        """The newest value of ``key`` (linearizable)."""
        ...

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        """Apply all ``writes`` in one revision iff all ``conditions`` hold. A key occurs once among the writes."""
        ...

    async def grant(self, ttl_s: int) -> LeaseId:
        """A new lease that ends unless kept alive within ``ttl_s`` seconds."""
        ...

    async def keep_alive(self, lease: LeaseId) -> float:
        """Renew; the seconds it now has. Raises :class:`~pdcore.errors.LeaseGone`."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease and its keys now; a lease already gone is no error."""
        ...

    def watch(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """Everything after ``after_revision``, whole revisions in order, interleaved with :class:`Alive`.

        Entering or iterating raises :class:`~pdcore.errors.Compacted` when that position is no longer kept, and
        :class:`~pdcore.errors.StoreUnavailable` on any break or silence: the caller resumes from the last revision
        it was handed.
        """
        ...
