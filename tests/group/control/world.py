"""A group's whole world in memory: the plan, slots, processes and what they register, moved by the steps that are decided.

Time passes only when nothing can be done. A supervisor can be killed after any step: its processes and its slots go,
and another one begins with nothing but what is stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pdcore.group.control import changing, deciding, keeping
from pdcore.group.control.backoff import Exits
from pdcore.group.control.deciding import AskLoad, AskRouters, Command, Erase, Evidence, Prove, Prune, Revise
from pdcore.group.control.generation import Generation, frozen
from pdcore.group.control.keeping import ChildSeen, Claim, Own, Release, Say, Spawn, Stop
from pdcore.group.control.members import Member, MemberRole
from pdcore.group.control.plan import Plan, plan_of, record_of
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import Slot, SlotWord
from pdcore.group.spec import GroupSpec, spec_of
from pdcore.topology import keys
from pdcore.topology.orders import DRAINED
from pdcore.topology.records import OrderRecord, Record, RouterRecord
from pdcore.topology.topology import Topology
from tests.support.fleet import complete, instance_record, topology_of

GROUP = "chat"
PACKAGE = "1.0"
URL = "http://127.0.0.1:8000"
_VIEWS: dict[object, Topology] = {}


def spec(prefill: int = 2, decode: int = 1, router: int = 1, **more: object) -> GroupSpec:
    """A native group."""
    counts = {"prefill": prefill, "decode": decode, "router": router}
    return spec_of(
        {
            "name": GROUP,
            "model": "/models/tiny",
            "disaggregation": {"mode": "pdcore"},
            "roles": [{"name": role, "replicas": count} for role, count in counts.items()],
            **more,
        }
    )


@dataclass
class Supervisor:
    """One supervisor's memory; what it runs ends with it."""

    name: str
    children: dict[Member, ChildSeen] = field(default_factory=dict)
    exits: dict[Member, Exits] = field(default_factory=dict)
    whys: dict[Member, str] = field(default_factory=dict)

    def own(self) -> Own:
        return Own(supervisor=self.name, children=dict(self.children), exits=self.exits, whys=self.whys)


@dataclass
class Held:
    owner: str
    word: SlotWord | None
    revision: int


@dataclass
class World:
    """``broken`` are generations whose engines exit at once; ``busy`` counts requests by instance id."""

    plan: Plan = field(default_factory=lambda: changing.first_plan({"prefill": 2, "decode": 1, "router": 1}))
    generations: dict[int, Generation] = field(default_factory=lambda: {1: frozen(spec(), 1, PACKAGE)})
    supervisors: list[Supervisor] = field(default_factory=lambda: [Supervisor("a")])
    broken: set[int] = field(default_factory=set)
    busy: dict[str, int] = field(default_factory=dict)
    slots: dict[Member, Held] = field(default_factory=dict)
    orders: dict[str, OrderRecord] = field(default_factory=dict)
    registered: dict[Member, str] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    revision: int = 1
    now: float = 1_000_000.0
    told: list[str] = field(default_factory=list)
    started: list[Member] = field(default_factory=list)
    erased: bool = False
    cpu_s: float = 0.0

    def topology(self) -> Topology:
        """The view that what is registered makes; worlds that stand alike share one."""
        orders = ((name, one.kind, one.incarnation) for name, one in self.orders.items())
        busy = tuple(sorted(name for name, count in self.busy.items() if count))
        stands = (tuple(sorted(self.registered.items())), tuple(sorted(orders)), busy)
        known = _VIEWS.get(stands)
        if known is None:
            known = _VIEWS[stands] = self._view()
        return known

    def _view(self) -> Topology:
        parts: list[dict[str, Record]] = []
        for member, incarnation in self.registered.items():
            name = member.name_in(GROUP)
            if member.role == "router":
                parts.append({keys.router(name): RouterRecord(url=URL, admin_url=URL, version=PACKAGE)})
                continue
            order = self.orders.get(name)
            drains = order is not None and order.kind == "drain"
            record = instance_record(
                "prefill" if member.role == "prefill" else "decode",
                incarnation=incarnation,
                group=GROUP,
                generation=member.generation,
                state="draining" if drains else "serving",
                extra={DRAINED: True} if drains and not self.busy.get(name) else {},
            )
            parts.append(complete(name, record))
        parts.append({keys.order(name): order for name, order in self.orders.items()})
        return topology_of(*parts)

    def seen(self, by: Supervisor) -> Seen:
        slots = {
            one: Slot(word=held.word, mod_revision=held.revision, mine=held.owner == by.name)
            for one, held in self.slots.items()
        }
        return Seen(
            group=GROUP,
            plan=plan_of(record_of(self.plan)),
            revision=self.revision,
            generations=self.generations,
            slots=slots,
            topology=self.topology(),
            now=self.now,
        )

    def work(self, by: Supervisor) -> bool:
        """Do everything one look of one supervisor and its controller asks for; False if that was nothing."""
        return sum(1 for _ in self.steps(by)) > 0

    def steps(self, by: Supervisor) -> Iterable[object]:
        """The same step by step, each done when it is handed out."""
        seen, own = self.seen(by), by.own()
        began = time.process_time()
        tasks, steps = keeping.next_tasks(seen, own), deciding.next_steps(seen, self.evidence)
        self.cpu_s += time.process_time() - began
        for task in tasks:
            self._task(by, seen, task)
            yield task
        for step in steps:
            self._step(seen, step)
            yield step

    def settle(self, looks: int = 400) -> None:
        """Until nothing can be done any more, waiting where waiting is what is left; AssertionError if that never is."""
        idle = 0
        for _ in range(looks):
            if any([self.work(one) for one in self.supervisors]):
                idle = 0
                continue
            idle += 1
            if idle > 4:
                return
            self.now += 20.0
        raise AssertionError(f"still at work: {self.told[-8:]}")

    def kill(self, one: Supervisor) -> Supervisor:
        """``one`` dies with its processes, its lease ends; who comes after it knows nothing."""
        for member in list(one.children):
            self.registered.pop(member, None)
        self.slots = {member: held for member, held in self.slots.items() if held.owner != one.name}
        self.supervisors.remove(one)
        self.evidence = Evidence()
        fresh = Supervisor(f"{one.name}'")
        self.supervisors.append(fresh)
        return fresh

    def crash(self, member: Member, status: int = 1) -> None:
        """A member's process ends by itself."""
        (by,) = [one for one in self.supervisors if member in one.children]
        del by.children[member]
        self._gone(member)
        by.exits[member] = by.exits.get(member, Exits()).after(self.now, status=status, lived_s=1.0)
        by.whys[member] = "killed"

    def ready(self) -> dict[tuple[int, MemberRole], int]:
        """How many members are registered, by generation and role."""
        counted: dict[tuple[int, MemberRole], int] = {}
        for one in self.registered:
            counted[one.generation, one.role] = counted.get((one.generation, one.role), 0) + 1
        return counted

    def _gone(self, member: Member) -> None:
        self.registered.pop(member, None)
        self.orders.pop(member.name_in(GROUP), None)

    def _task(self, by: Supervisor, seen: Seen, task: keeping.Task) -> None:
        match task:
            case Claim(members):
                if seen.revision == self.revision and not any(one in self.slots for one in members):
                    self.slots |= {one: Held(by.name, None, self.revision) for one in members}
            case Spawn(member):
                assert self.slots[member].owner == by.name
                assert not any(member in one.children for one in self.supervisors), "a member runs twice"
                self._spawn(by, member)
            case Stop(member, _):
                by.children.pop(member)
                self._gone(member)
            case Release(member):
                if self.slots[member].owner == by.name:
                    del self.slots[member]
                    by.exits.pop(member, None)
            case Say(member, word):
                if member in self.slots and self.slots[member].owner == by.name:
                    self.slots[member].word = word

    def _spawn(self, by: Supervisor, member: Member) -> None:
        self.started.append(member)
        if member.generation in self.broken:
            before = by.exits.get(member, Exits())
            by.exits[member] = before.after(self.now, status=1, lived_s=1.0)
            by.whys[member] = "no such flag"
            return
        by.children[member] = ChildSeen(phase="running", pid=1)
        self.registered[member] = f"i{len(self.started)}"

    def _step(self, seen: Seen, step: deciding.Step) -> None:
        match step:
            case Revise(plan=plan, why=why):
                if seen.revision == self.revision:
                    self.plan = plan
                    self.revision += 1
                    self.told.append(why)
            case Erase():
                self.erased = True
            case Prune(numbers):
                for number in numbers:
                    del self.generations[number]
            case Command(instance_id=instance_id, incarnation=incarnation, kind=kind):
                if kind == "undrain":
                    self.orders.pop(instance_id, None)
                else:
                    self.orders[instance_id] = OrderRecord(
                        kind=kind, incarnation=incarnation, sticky=False, by=deciding.signature(GROUP)
                    )
            case Prove(proof=proof):
                self.evidence = replace(self.evidence, proven=self.evidence.proven | {proof})
            case AskRouters(revision=revision):
                self.evidence = replace(self.evidence, routers_at=revision)
            case AskLoad():
                self.evidence = replace(self.evidence, load=dict(self.busy))
