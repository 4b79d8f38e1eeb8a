"""The controller of one group: looks, has the next steps decided, does them, and looks again.

Several may run at once, one in every supervisor. What one of them could not do is done at the next look, by whoever
looks first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from pdcore import telemetry
from pdcore.errors import StoreError
from pdcore.group.control import deciding
from pdcore.group.control.asking import Asking, Refusal
from pdcore.group.control.deciding import (
    AskLoad,
    AskRouters,
    Command,
    Erase,
    Evidence,
    Prove,
    Prune,
    Revise,
    next_steps,
)
from pdcore.group.control.following import GroupFollower
from pdcore.group.control.seen import Seen
from pdcore.group.control.writing import GroupWriter
from pdcore.registry import ordering
from pdcore.registry.operator import give_order
from pdcore.registry.ordering import Give, TakeBack
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

TICK_S: Final = 0.5
"""How often it looks while nothing is told: deadlines pass without news."""

log = telemetry.logger(__name__)


class Controller:
    """Run :meth:`control` as a task. Mutable: ``_evidence``, what asking has brought so far."""

    def __init__(
        self,
        store: Store,
        keyspace: Keyspace,
        follower: GroupFollower,
        asking: Asking,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._keyspace = keyspace
        self._follower = follower
        self._asking = asking
        self._say = say
        self._writer = GroupWriter(store, keyspace, follower.group)
        self._evidence = Evidence()

    async def control(self) -> None:
        """Until cancelled."""
        told = ""
        while True:
            try:
                await self.look()
                told = ""
            except StoreError as error:
                if str(error) != told:
                    log.warning("the group waits for its store", reason=str(error))
                told = str(error)
            await self._follower.wait_news(TICK_S)

    async def look(self) -> None:
        """One look and everything that follows from it. Raises StoreError."""
        seen = self._follower.seen()
        if seen is None:
            return
        if seen.plan.restart is None and self._evidence.proven:
            self._evidence = replace(self._evidence, proven=frozenset())
        for step in next_steps(seen, self._evidence):
            await self._do(seen, step)

    async def _do(self, seen: Seen, step: deciding.Step) -> None:
        match step:
            case Revise(plan=plan, why=why):
                self._evidence = replace(self._evidence, load=None)
                if await self._writer.revise(seen.revision, plan):
                    self._say(why)
            case Erase():
                if await self._writer.erase(seen.revision, seen.topology.groups[seen.group]):
                    self._say(f"group {seen.group} is gone")
            case Prune(numbers):
                await self._writer.forget(numbers)
            case Command():
                await self._command(seen.group, step)
            case Prove(generation=generation, proof=proof):
                await self._prove(seen, generation, proof)
            case AskRouters(revision=revision):
                refusal = await self._asking.routers_at(seen.topology, revision)
                if refusal is None:
                    self._evidence = replace(self._evidence, routers_at=revision)
                    self._follower.news.set()
                self._note("not_switched", refusal)
            case AskLoad():
                load = await self._asking.load(seen.topology)
                self._evidence = replace(self._evidence, load=load)
                self._follower.news.set()

    async def _command(self, group: str, command: Command) -> None:
        by = deciding.signature(group)
        if command.kind == "undrain":
            decide = ordering.undrain
        elif command.kind == "drain":
            decide = partial(ordering.drain, sticky=False, by=by)
        else:
            decide = partial(ordering.end_start, incarnation=command.incarnation, by=by)
        ordered = await give_order(self._store, self._keyspace, command.instance_id, decide)
        if isinstance(ordered.decision, Give | TakeBack):
            self._say(ordered.decision.sentence)

    async def _prove(self, seen: Seen, generation: int, proof: str) -> None:
        frozen = seen.generations.get(generation)
        if frozen is None:
            return
        refusal = await self._asking.prove(seen.topology, frozen.model_name, proof)
        if refusal is None:
            self._say(f"generation {generation} answered its question")
            self._evidence = replace(self._evidence, proven=self._evidence.proven | {proof})
            self._follower.news.set()
        self._note("not_proven", refusal)

    def _note(self, what: str, refusal: Refusal | None) -> None:
        why = "" if refusal is None else refusal.why
        known = self._evidence.not_proven if what == "not_proven" else self._evidence.not_switched
        if why and why != known:
            self._say(
                f"{'the candidate is not proven' if what == 'not_proven' else 'not everybody has switched'}: {why}"
            )
        if what == "not_proven":
            self._evidence = replace(self._evidence, not_proven=why)
        else:
            self._evidence = replace(self._evidence, not_switched=why)
