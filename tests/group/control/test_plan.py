"""A plan survives its record, also with what it does not know; what cannot be read is not acted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdcore.group.control.members import Member, additional, member_at
from pdcore.group.control.plan import LastRestart, Plan, Restart, Unreadable, plan_of, record_of
from pdcore.topology import codec, keys
from pdcore.topology.records import DesiredRecord

pytestmark = pytest.mark.unit

P1, P2, R1 = Member(3, "prefill", 1), Member(3, "prefill", 2), Member(0, "router", 1)
PLAN = Plan(
    active=3,
    candidate=4,
    deadline=1_700_000_000.25,
    replicas={"prefill": 2, "decode": 1, "router": 1},
    members=frozenset({P1, R1}),
    leaving={P2: 1_700_000_100.5},
    restart=Restart(
        kind="blue-green",
        phase="switching",
        before=3,
        to=4,
        by="me",
        since=1_700_000_000.0,
        deadline=1_700_000_300.0,
        proof="secret",
        why="",
    ),
    last_restart=LastRestart(to=3, result="rolled back", why="it fell", at=1_699_999_999.0),
    drain_limit_s=12.5,
    extra={"of_a_newer_version": 1},
)


def test_a_plan_is_read_from_its_record_as_it_was() -> None:
    value = codec.encode(record_of(PLAN))
    record = codec.decode(keys.desired("chat"), value)
    assert isinstance(record, DesiredRecord)
    assert plan_of(record) == PLAN
    assert "secret" not in repr(PLAN)


def test_a_record_that_only_names_numbers_is_a_plan_without_members() -> None:
    bare = DesiredRecord(active=1, candidate=None, deadline=None, replicas={"prefill": 2})
    assert plan_of(bare) == Plan(active=1, replicas={"prefill": 2, "decode": 0, "router": 0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("members", ["3/prefill/0"]),
        ("members", {"3/prefill/1": 1}),
        ("leaving", {"3/prefill/1": "soon"}),
        ("restart", {"kind": "sideways"}),
        ("drain_limit_s", -1),
        ("last_restart", {"to": 1}),
    ],
)
def test_what_cannot_be_read_is_no_plan(field: str, value: object) -> None:
    record = record_of(PLAN)
    with pytest.raises(Unreadable, match="cannot be acted on"):
        plan_of(record._replace(extra={**record.extra, field: value}))  # type: ignore[dict-item]


def test_no_member_lives_and_leaves_at_once() -> None:
    left = PLAN.without(P1, Member(3, "decode", 9), until=5.0)
    assert left.members == {R1}
    assert set(left.leaving) == {P1, P2}
    back = left.with_members(P1)
    assert P1 in back.members
    assert P1 not in back.leaving
    assert back.forgetting(P2).leaving == {}


def test_members_have_one_spelling() -> None:
    assert member_at("3/prefill/2") == P2
    for wrong in ("3/prefill/02", "3/unified/1", "a/prefill/1", "3/prefill/1/", ""):
        assert member_at(wrong) is None
    assert P2.name_in("chat") == "chat-3-prefill-2"
    assert R1.name_in("chat") == "chat-router-1"
    assert additional({1, 3, 4}, 3) == [2, 5, 6]


def test_a_candidate_comes_and_goes() -> None:
    assert PLAN.candidate_is(None).deadline is None
    assert replace(PLAN, candidate=None).candidate_is(9, 1.0).candidate == 9
