"""One instance in full: what is said of it when it is there, incomplete, or gone."""

from __future__ import annotations

import json

import pytest

from pdcore.group.instance_view import document, lines, rank_rows
from pdcore.topology import codec, keys
from pdcore.topology.keys import RankId, RankPosition
from pdcore.topology.records import DepartureRecord, Record
from pdcore.topology.topology import Stored, build
from tests.support.fleet import complete, instance_record, order_record, rank_record, topology_of

pytestmark = pytest.mark.unit

RECORD = instance_record(dp_size=3)
INCOMPLETE: dict[str, Record] = {
    keys.instance("p0"): RECORD,
    keys.rank(RankId("p0", RankPosition(0, 0, 0))): rank_record(),
    keys.rank(RankId("p0", RankPosition(1, 0, 0))): rank_record(incarnation="older"),
    keys.rank(RankId("p0", RankPosition(7, 0, 0))): rank_record(),
    keys.departure("p0"): DepartureRecord(incarnation="inc-1", reason="silent", by="registrar"),
    keys.order("p0"): order_record("drain"),
}


def said(records: dict[str, Record], claim: str | None = "inc-1") -> str:
    return "\n".join(lines(topology_of(records), "p0", claim))


def test_every_rank_has_a_row_that_says_how_it_stands() -> None:
    rows = rank_rows(topology_of(INCOMPLETE).instances["p0"])
    assert [(row.position, row.standing.partition(":")[0]) for row in rows] == [
        ("0.0.0", "present"),
        ("1.0.0", "does not count"),
        ("2.0.0", "missing"),
        ("7.0.0", "does not count"),
    ]
    assert (rows[0].address, rows[0].device, rows[0].machine) == ("127.0.0.1:40001", "cpu", "host-a")


def test_an_incomplete_instance_says_what_it_lacks_and_what_it_is_told() -> None:
    text = said(INCOMPLETE)
    assert text.startswith("p0 is a prefill instance, not ready, at revision 1\n")
    for sentence in (
        "  rank 2.0.0 is missing",
        "  it takes no new requests\n",
        "  incarnation inc-1 went: silent, says registrar",
        "  ordered: drain incarnation inc-1, by test",
        "  rank 1.0.0: does not count: it is of incarnation older, the instance is inc-1",
    ):
        assert sentence in text
    assert "claimed by" not in text


def test_a_newer_claim_is_told() -> None:
    assert "  its id is claimed by incarnation inc-2" in said(complete("p0", instance_record()), "inc-2")


def test_a_seat_is_told_where_there_is_one() -> None:
    seated = complete("p0", instance_record(extra={"seat": 3}))
    assert "\n  it has seat 3\n" in said(seated)
    assert "seat" not in said(INCOMPLETE)
    told = [document(topology_of(records), "p0", None)["instance"] for records in (seated, INCOMPLETE)]
    assert [one["seat"] for one in told if isinstance(one, dict)] == [3, None]


def test_one_that_is_gone_says_why() -> None:
    gone: dict[str, Record] = {key: INCOMPLETE[key] for key in (keys.departure("p0"), keys.order("p0"))}
    assert said(gone, None).splitlines() == [
        "p0 is not registered at revision 1",
        "  incarnation inc-1 went: silent, says registrar",
        "  ordered: drain incarnation inc-1, by test",
    ]


def test_a_thousand_ranks_are_not_all_listed() -> None:
    text = said(complete("p0", instance_record(dp_size=1000)))
    assert "… and 936 more ranks" in text


def test_the_document_is_json_and_says_the_same() -> None:
    read = json.loads(json.dumps(document(topology_of(INCOMPLETE), "p0", "inc-1")))
    assert (read["claim"], read["drained"], read["departure"]["reason"]) == ("inc-1", False, "silent")
    assert read["order"] == {"kind": "drain", "incarnation": "inc-1", "sticky": False, "by": "test"}
    assert [rank["position"] for rank in read["ranks"]] == ["0.0.0", "1.0.0", "2.0.0", "7.0.0"]
    hostile = build({"instances/p0": Stored(b"{", 1), "orders/p0": Stored(codec.encode(RECORD), 1)}, 1)
    assert json.loads(json.dumps(document(hostile, "p0", None)))["instance"] is None
