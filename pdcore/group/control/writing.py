"""Writing what was decided about a group, each time only if what it was decided on still stands."""

from __future__ import annotations

from collections.abc import Iterable

from pdcore.group.control import slots
from pdcore.group.control.generation import Generation
from pdcore.group.control.members import Member
from pdcore.group.control.plan import Plan, record_of
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import Slot, SlotWord
from pdcore.registry.store import (
    MAX_WRITES,
    Absent,
    Condition,
    Delete,
    LeaseId,
    ModRevisionIs,
    Put,
    Store,
    Write,
)
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DocumentRecord
from pdcore.topology.topology import Group


class GroupWriter:
    """The keys of one group. Every method raises StoreError, and is False where something had changed meanwhile."""

    def __init__(self, store: Store, keyspace: Keyspace, group: str) -> None:
        self._store = store
        self._keyspace = keyspace
        self._group = group

    async def revise(self, revision: int | None, plan: Plan, *new: Generation) -> bool:
        """Replace the plan written at ``revision`` (None: there is none), and add generations that nobody has."""
        return await self.write(revision, plan, (), (), *new)

    async def write(
        self,
        revision: int | None,
        plan: Plan,
        conditions: tuple[Condition, ...],
        writes: tuple[Write, ...],
        *new: Generation,
    ) -> bool:
        """:meth:`revise` with more in the same transaction."""
        key = self._keyspace.view + keys.desired(self._group)
        unchanged: Condition = Absent(key) if revision is None else ModRevisionIs(key, revision)
        made = [self._generation_key(one) for one in new]
        committed = await self._store.commit(
            (unchanged, *conditions, *map(Absent, made)),
            (
                Put(key, codec.encode(record_of(plan))),
                *writes,
                *(
                    Put(name, codec.encode(DocumentRecord(dict(one.document))))
                    for name, one in zip(made, new, strict=True)
                ),
            ),
        )
        return committed.succeeded

    async def forget(self, numbers: Iterable[int]) -> bool:
        """Remove the records of generations that are over."""
        names = [self._keyspace.view + keys.generation(self._group, number) for number in numbers]
        return (await self._store.commit((), tuple(map(Delete, names[:MAX_WRITES])))).succeeded

    async def erase(self, revision: int, group: Group) -> bool:
        """Remove everything that ``group`` has in the view, if the plan is still the one written at ``revision``."""
        view = self._keyspace.view
        desired = view + keys.desired(self._group)
        names = [view + keys.generation(self._group, number) for number in group.generations]
        for start in range(0, len(names), MAX_WRITES):
            deletes = tuple(Delete(name) for name in names[start : start + MAX_WRITES])
            if not (await self._store.commit((ModRevisionIs(desired, revision),), deletes)).succeeded:
                return False
        last = (Delete(view + keys.spec(self._group)), Delete(desired))
        return (await self._store.commit((ModRevisionIs(desired, revision),), last)).succeeded

    async def claim(self, seen: Seen, members: Iterable[Member], word: SlotWord, lease: LeaseId) -> bool:
        """Take every slot of ``members``, or none; not if the plan is another one by now.

        Groups beyond a transaction's size are taken in several.
        """
        planned = ModRevisionIs(self._keyspace.view + keys.desired(self._group), seen.revision)
        wanted = list(members)
        value = slots.encode(word)
        for start in range(0, len(wanted), MAX_WRITES - 1):
            names = [self._slot_key(one) for one in wanted[start : start + MAX_WRITES - 1]]
            puts = tuple(Put(name, value, lease) for name in names)
            committed = await self._store.commit((planned, *map(Absent, names)), puts)
            if not committed.succeeded:
                return False
        return True

    async def say(self, member: Member, slot: Slot, word: SlotWord, lease: LeaseId) -> bool:
        """Write ``word`` into ``slot``, which must be as it was seen."""
        name = self._slot_key(member)
        put = Put(name, slots.encode(word), lease)
        return (await self._store.commit((ModRevisionIs(name, slot.mod_revision),), (put,))).succeeded

    async def release(self, member: Member, slot: Slot) -> bool:
        """Give ``slot`` back, which must be as it was seen."""
        name = self._slot_key(member)
        return (
            await self._store.commit((ModRevisionIs(name, slot.mod_revision),), (Delete(name),))
        ).succeeded

    def _slot_key(self, member: Member) -> str:
        return slots.key(self._keyspace, self._group, member)

    def _generation_key(self, generation: Generation) -> str:
        return self._keyspace.view + keys.generation(self._group, generation.number)
