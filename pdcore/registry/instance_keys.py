"""Reading and writing the keys of one instance, every write under the claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pdcore import telemetry
from pdcore.errors import StoreRefused
from pdcore.registry import desired
from pdcore.registry.desired import Fence, Transaction, Wanted
from pdcore.registry.store import Committed, Condition, LeaseId, Store, Stored

log = telemetry.logger(__name__)

DEPARTURE_TTL_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The claim, every key of the instance relative to the view (its departure too), and the order it is under."""

    claim: Stored | None
    entries: Mapping[str, Stored]
    order: Stored | None = None


class InstanceKeys:
    """What a registrar reads and writes. Holds no state but who it is."""

    def __init__(self, fence: Fence, store: Store, by: str) -> None:
        self.fence = fence
        self.by = by
        self._store = store

    async def read(self) -> Found:
        """The claim first: whatever was read after it is written under it or not at all."""
        claim = await self._store.get(self.fence.claim_key)
        entries: dict[str, Stored] = {}
        for key in (self.fence.instance_key, self.fence.departure_key):
            stored = await self._store.get(self.fence.absolute(key))
            if stored is not None:
                entries[key] = stored
        ranks = await self._store.list(self.fence.absolute(self.fence.ranks_prefix))
        view = len(self.fence.keyspace.view)
        entries |= {key[view:]: stored for key, stored in ranks.entries.items()}
        order = await self._store.get(self.fence.absolute(self.fence.order_key))
        return Found(claim=claim, entries=entries, order=order)

    async def repair(self, found: Found, want: Wanted, lease: LeaseId | None) -> int | None:
        """Commit what ``found`` lacks; the revision as of which ``want`` stands, None when the claim has moved."""
        explained = desired.explanation(self.fence, found.entries, want) is not None
        transactions = desired.repair(
            self.fence,
            found.entries,
            want,
            order=found.order,
            lease=lease,
            departure_lease=await self.departure_lease() if explained else None,
            by=self.by,
        )
        revision = max((stored.mod_revision for stored in found.entries.values()), default=0)
        for transaction in transactions:
            committed = await self.commit(transaction)
            if not committed.succeeded:
                return None
            revision = committed.revision
        return revision

    async def confirm(self, want: Wanted, order: Stored | None, held: tuple[Condition, ...]) -> bool:
        """Whether all of ``want`` stands under our claim, ``order`` is still the one given and what is ``held`` is held.

        False also when one question cannot tell.
        """
        question = desired.confirmation(self.fence, want, order, held)
        return question is not None and (await self.commit(question)).succeeded

    async def departure_lease(self) -> LeaseId | None:
        """A lease for one departure; None from a store that grants none (it is full)."""
        try:
            return await self._store.grant(DEPARTURE_TTL_S)
        except StoreRefused as refusal:
            log.warning("departure goes unexplained", reason=str(refusal))
            return None

    async def commit(self, transaction: Transaction) -> Committed:
        """Commit; when the store refuses, at least the deletes, before the refusal is raised."""
        try:
            return await self._store.commit(transaction.conditions, transaction.writes)
        except StoreRefused:
            deletes = transaction.deletes()
            if deletes is not None and deletes != transaction:
                await self._store.commit(deletes.conditions, deletes.writes)
            raise
