"""The states table: every row, what a group waits for, and what is told beside the state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from pdcore.group.control.generation import Generation, frozen
from pdcore.group.control.members import Member
from pdcore.group.control.plan import LastRestart, Plan, Restart
from pdcore.group.control.slots import Slot, SlotWord
from pdcore.group.control.state import Facts, GroupState, StateName, state_of
from pdcore.group.spec import GroupSpec
from pdcore.topology import keys
from pdcore.topology.records import DocumentRecord, OrderRecord, Record, RouterRecord
from pdcore.topology.topology import Topology
from tests.group.control.world import GROUP, PACKAGE, URL, spec
from tests.support.fleet import complete, instance_record, topology_of

pytestmark = pytest.mark.unit

P1, P2, D1, R1 = (
    Member(1, "prefill", 1),
    Member(1, "prefill", 2),
    Member(1, "decode", 1),
    Member(0, "router", 1),
)
EVERYBODY = (P1, P2, D1, R1)
PLAN = Plan(active=1, replicas={"prefill": 2, "decode": 1, "router": 1}, members=frozenset(EVERYBODY))
RESTART = Restart(
    kind="blue-green", phase="starting", before=1, to=2, by="me", since=0.0, deadline=300.0, proof="x"
)
HELD = Slot(word=SlotWord(supervisor="a", phase="running"), mod_revision=1)
FAILED = Slot(word=SlotWord(supervisor="a", phase="waiting", failed=True, why="no memory"), mod_revision=1)


def topology(
    *ready: Member,
    starting: tuple[Member, ...] = (),
    drained: tuple[Member, ...] = (),
    saved: GroupSpec | None = None,
) -> Topology:
    """Of these members; ``starting`` are registered and do not serve yet, ``drained`` are under an order."""
    parts: list[dict[str, Record]] = []
    if saved is not None:
        parts.append({keys.spec(GROUP): DocumentRecord(document=saved.document)})
    for one in (*ready, *starting, *drained):
        name = one.name_in(GROUP)
        if one.role == "router":
            parts.append({keys.router(name): RouterRecord(url=URL, admin_url=URL, version=PACKAGE)})
            continue
        record = instance_record(
            "prefill" if one.role == "prefill" else "decode",
            group=GROUP,
            generation=one.generation,
            state="starting" if one in starting else "serving",
        )
        parts.append(complete(name, record))
        if one in drained:
            order = OrderRecord(kind="drain", incarnation=record.incarnation, sticky=False, by="x")
            parts.append({keys.order(name): order})
    return topology_of(*parts)


def judged(
    seen: Topology,
    *,
    plan: Plan = PLAN,
    slots: dict[Member, Slot] | None = None,
    readiness: str = "any_per_role",
    newest: Generation | None = None,
    package: str = PACKAGE,
) -> GroupState:
    """The state of a group of 2P1D with one router."""
    mode = {"mode": "pdcore", "readiness": readiness}
    running = frozen(spec(disaggregation=mode), 1, PACKAGE)
    held = dict.fromkeys(EVERYBODY, HELD) if slots is None else slots
    return state_of(
        Facts(
            group=GROUP,
            plan=plan,
            running=running,
            newest=newest or running,
            slots=held,
            topology=seen,
            package=package,
        )
    )


@dataclass(frozen=True)
class Row:
    ready: tuple[Member, ...]
    state: StateName
    says: str
    failed: tuple[Member, ...] = ()
    starting: tuple[Member, ...] = ()
    drained: tuple[Member, ...] = ()
    readiness: str = "any_per_role"
    codes: tuple[str, ...] = field(default=())


TABLE = {
    "nothing is there": Row(
        (), "pending", "waits for prefill (0 of 2 ready), decode (0 of 1 ready), router (0 of 1 ready)"
    ),
    "everybody starts": Row((), "pending", "waits for prefill (0 of 2", starting=(P1, P2, D1)),
    "one prefill": Row((P1,), "partial", "waits for decode (0 of 1 ready), router (0 of 1 ready)"),
    "no router": Row((P1, P2, D1), "partial", "waits for router (0 of 1 ready)"),
    "only the router": Row((R1,), "partial", "waits for prefill (0 of 2 ready), decode (0 of 1 ready)"),
    "one of each": Row((P1, D1, R1), "running", "serves", codes=("ratio_unmet",)),
    "everybody": Row(EVERYBODY, "running", "serves"),
    "one of each, all are asked for": Row(
        (P1, D1, R1), "partial", "waits for prefill (1 of 2 ready)", readiness="all"
    ),
    "everybody, all are asked for": Row(EVERYBODY, "running", "serves", readiness="all"),
    "one is on its way out": Row((P1, D1, R1), "running", "serves", drained=(P2,), codes=("ratio_unmet",)),
    "the only decode drains": Row((P1, P2, R1), "partial", "waits for decode (0 of 1 ready)", drained=(D1,)),
    "one failed, nothing is ready": Row(
        (), "error", "1 of 4 members failed: chat-1-decode-1: no memory", failed=(D1,)
    ),
    "all failed": Row((), "error", "3 of 4 members failed", failed=(P1, P2, D1)),
    "one failed, others are ready": Row(
        (P1, P2, R1),
        "partial",
        "waits for decode (0 of 1 ready); failed: chat-1-decode-1: no memory",
        failed=(D1,),
        codes=("members_failed",),
    ),
    "one failed, the group serves": Row(
        (P1, D1, R1), "running", "serves", failed=(P2,), codes=("ratio_unmet", "members_failed")
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_row_of_the_table(name: str) -> None:
    row = TABLE[name]
    slots = dict.fromkeys(EVERYBODY, HELD) | dict.fromkeys(row.failed, FAILED)
    found = judged(
        topology(*row.ready, starting=row.starting, drained=row.drained), slots=slots, readiness=row.readiness
    )
    assert found.name == row.state
    assert row.says in found.sentence
    assert tuple(one.code for one in found.degradations) == row.codes


def test_titles_are_those_that_operators_know() -> None:
    titles = [judged(topology(*some)).title for some in ((), (P1,), EVERYBODY)]
    assert titles == ["Pending", "Partially ready", "Running"]
    assert judged(topology(), slots={D1: FAILED}).title == "Error"


def test_members_of_another_generation_or_group_do_not_count() -> None:
    other = [Member(2, one.role, one.number) for one in (P1, P2, D1)]
    found = judged(topology(*other, R1))
    assert found.name == "partial"
    assert found.roles["prefill"].ready == 0
    assert [one.code for one in found.degradations] == ["stranger"] * 3


def test_who_leaves_is_counted_as_draining_and_not_as_ready() -> None:
    plan = PLAN.without(P2, until=1.0)
    found = judged(topology(*EVERYBODY), plan=replace(plan, replicas={**PLAN.replicas, "prefill": 1}))
    assert (found.roles["prefill"].ready, found.roles["prefill"].draining) == (1, 1)
    assert found.name == "running"


def test_nobody_runs_the_group() -> None:
    assert "waits for somebody to start its members: pdcore up" in judged(topology(), slots={}).sentence


def test_a_newer_spec_makes_it_stale_and_another_package_is_told() -> None:
    newer = frozen(spec(backend_parameters=["--max-batch=8"]), 1, PACKAGE)
    assert judged(topology(*EVERYBODY), newest=newer).stale
    more = frozen(spec(prefill=5, decode=4), 1, "9.9")
    assert not judged(topology(*EVERYBODY), newest=more).stale, "numbers of replicas restart nobody"
    found = judged(topology(*EVERYBODY), package="9.9")
    assert [one.code for one in found.degradations] == ["package_differs"]
    assert "version 1.0, this is 9.9" in found.degradations[0].sentence


def test_a_restart_is_told_in_every_phase() -> None:
    said = {
        phase: judged(
            topology(*EVERYBODY), plan=replace(PLAN, restart=replace(RESTART, phase=phase, why="it fell"))
        ).sentence
        for phase in ("starting", "switching", "draining", "rolling_back")
    }
    assert said == {
        "starting": "restart: starts generation 2 beside 1",
        "switching": "restart: waits until every router sends to generation 2",
        "draining": "restart: drains generation 1",
        "rolling_back": "restart: goes back to generation 1: it fell",
    }
    down = replace(PLAN, restart=replace(RESTART, kind="stop-start", phase="stopping"))
    assert judged(topology(), plan=down).sentence.startswith("restart: stops generation 1 before it starts 2")


def test_how_the_last_restart_ended_is_told_unless_it_is_done() -> None:
    last = LastRestart(to=2, result="rolled back", why="it cannot start", at=0.0)
    found = judged(topology(*EVERYBODY), plan=replace(PLAN, last_restart=last))
    assert [one.code for one in found.degradations] == ["restart_not_done"]
    done = replace(PLAN, last_restart=replace(last, result="done"))
    assert judged(topology(*EVERYBODY), plan=done).degradations == ()
