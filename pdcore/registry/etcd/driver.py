"""The store contract on etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Self

from pdcore.errors import Compacted, LeaseGone, StoreRefused, StoreUnavailable
from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.endpoints import MAX_MESSAGE_BYTES, Endpoints
from pdcore.registry.etcd.faults import PageTooLarge
from pdcore.registry.etcd.identity import NOBODY, Identity
from pdcore.registry.etcd.methods import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, RANGE, TXN
from pdcore.registry.etcd.revisions import key_range, key_text, stored
from pdcore.registry.etcd.watch import Patience, watch_prefix
from pdcore.registry.store import (
    Absent,
    Committed,
    Condition,
    LeaseId,
    ModRevisionIs,
    Put,
    Snapshot,
    Stored,
    ValueIs,
    WatchMessage,
    Write,
)

PAGE_KEYS: Final = 1_000
LIST_TRIES: Final = 3
HURRIED: Final = Patience(ping_s=0.3)
"""Of somebody who reads history and waits for its end."""
NEVER: Final = -1  # no key was ever written at this revision


class EtcdStore:
    """The keyspace on the etcd cluster at ``addresses`` (``host:port``), as ``identity`` (nobody, and unencrypted,
    unless given). Every call ends within ``timeout_s`` per page or transaction; reads and lease calls are tried on a
    second member, transactions never. ``first`` is the index of the member to begin with, a random one unless given.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        timeout_s: float,
        identity: Identity = NOBODY,
        patience: Patience | None = None,
        page_keys: int = PAGE_KEYS,
        first: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._endpoints = Endpoints(
            addresses,
            timeout_s=timeout_s,
            identity=identity,
            first=first,
            max_message_bytes=max_message_bytes,
        )
        self._patience = patience or Patience()
        self._page_keys = page_keys

    def __repr__(self) -> str:
        return f"<EtcdStore {','.join(self._endpoints.addresses)} now {self._endpoints.current}>"

    async def __aenter__(self) -> Self:
        await self._endpoints.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._endpoints.__aexit__(*exc_info)

    async def list(self, prefix: str) -> Snapshot:
        """See :class:`~pdcore.registry.store.Store`. Paged; started over when its revision is compacted midway."""
        for _ in range(LIST_TRIES):
            with suppress(Compacted):
                return await self._list_pages(prefix)
        raise StoreUnavailable(f"the listing of {prefix} was overtaken by compaction {LIST_TRIES} times")

    async def get(self, key: str) -> Stored | None:
        """See :class:`~pdcore.registry.store.Store`."""
        answer = await self._endpoints.call(RANGE, wire.RangeRequest(key=key.encode()), repeatable=True)
        return stored(answer.kvs[0]) if answer.kvs else None

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        """See :class:`~pdcore.registry.store.Store`."""
        request = wire.TxnRequest(
            compare=[_compare(condition) for condition in conditions],
            success=[_operation(write) for write in writes],
        )
        answer = await self._endpoints.call(TXN, request, repeatable=False)
        return Committed(answer.succeeded, answer.header.revision)

    async def grant(self, ttl_s: int) -> LeaseId:
        """See :class:`~pdcore.registry.store.Store`. A grant that happened twice leaves a lease that runs out."""
        request = wire.LeaseGrantRequest(ttl_s=ttl_s)
        answer = await self._endpoints.call(LEASE_GRANT, request, repeatable=True)
        if answer.error:
            raise StoreRefused(f"no lease: {answer.error}")
        return LeaseId(answer.id)

    async def keep_alive(self, lease: LeaseId) -> float:
        """See :class:`~pdcore.registry.store.Store`."""
        request = wire.LeaseKeepAliveRequest(id=lease)
        answer = await self._endpoints.call(LEASE_KEEP_ALIVE, request, repeatable=True)
        if answer.ttl_s <= 0:
            raise LeaseGone(f"lease {lease} does not exist")
        return float(answer.ttl_s)

    async def revoke(self, lease: LeaseId) -> None:
        """See :class:`~pdcore.registry.store.Store`."""
        with suppress(LeaseGone):
            await self._endpoints.call(LEASE_REVOKE, wire.LeaseRevokeRequest(id=lease), repeatable=True)

    def watch(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """See :class:`~pdcore.registry.store.Store`."""
        return watch_prefix(self._endpoints, prefix, after_revision, self._patience)

    async def list_at(self, prefix: str, revision: int) -> Snapshot:
        """See :class:`~pdcore.registry.history.Remembering`."""
        return await self._list_pages(prefix, revision)

    def recall(
        self, prefix: str, after_revision: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchMessage]]:
        """See :class:`~pdcore.registry.history.Remembering`."""
        return watch_prefix(self._endpoints, prefix, after_revision, HURRIED)

    async def _list_pages(self, prefix: str, revision: int = 0) -> Snapshot:
        key, end = key_range(prefix)
        limit = self._page_keys
        entries: dict[str, Stored] = {}
        while True:
            request = wire.RangeRequest(key=key, range_end=end, revision=revision, limit=limit)
            try:
                page = await self._endpoints.call(RANGE, request, repeatable=True)
            except PageTooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            revision = revision or page.header.revision
            entries.update((key_text(kv.key), stored(kv)) for kv in page.kvs)
            if not page.more:
                return Snapshot(revision, entries)
            key = page.kvs[-1].key + b"\0"


def _compare(condition: Condition) -> wire.Compare:
    key = condition.key.encode()
    match condition:
        case Absent():
            return wire.Compare(target=wire.Compare.CREATE, key=key, create_revision=0)
        case ValueIs(value=value):
            return wire.Compare(target=wire.Compare.VALUE, key=key, value=value)
        case ModRevisionIs(mod_revision=revision):
            # etcd gives an absent key the revision 0; the contract does not.
            return wire.Compare(target=wire.Compare.MOD, key=key, mod_revision=revision or NEVER)


def _operation(write: Write) -> wire.Operation:
    key = write.key.encode()
    if isinstance(write, Put):
        return wire.Operation(put=wire.PutRequest(key=key, value=write.value, lease=write.lease or 0))
    return wire.Operation(delete_range=wire.DeleteRangeRequest(key=key))
