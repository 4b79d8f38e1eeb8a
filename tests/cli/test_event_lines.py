"""Events for people and for programs."""

from __future__ import annotations

import json

import pytest

from pdcore.cli.event_lines import document_lines, lines, shown_time
from pdcore.registry.history import Told
from pdcore.topology.events import (
    Event,
    InstanceChanged,
    InstanceLost,
    RankLost,
    RecordRejected,
    RouterJoined,
)
from pdcore.topology.keys import RankPosition
from pdcore.topology.records import RouterRecord
from pdcore.topology.topology import Topology
from tests.support.fleet import instance_record, rank_record

pytestmark = pytest.mark.unit

P0 = {"revision": 812, "instance_id": "p0", "incarnation": "0123456789abcdef"}
LOST = InstanceLost(**P0, record=instance_record(), reason="died")  # type: ignore[arg-type]
RANK = RankLost(**P0, position=RankPosition(0, 0, 1), record=rank_record(), reason="unexplained")  # type: ignore[arg-type]
CHANGED = InstanceChanged(**P0, record=instance_record(), fields=("state", "url"), coalesced=True)  # type: ignore[arg-type]
ROUTER = RouterJoined(
    revision=7, router_id="r0", record=RouterRecord(url="http://h:1", admin_url="http://h:1", version="1")
)
HOSTILE = RecordRejected(revision=9, key="routers/\x1b[2J", reason='is "bad"\nand worse')


def told(*events: Event, time_ms: int | None = None, lost: str | None = None) -> Told:
    return Told(revision=812, time_ms=time_ms, events=events, topology=Topology.empty(), lost=lost)


def test_a_line_says_when_what_who_and_why() -> None:
    (line,) = lines(told(LOST, time_ms=0))
    assert line.split() == [
        "812",
        *(shown_time(0) or "").split("+")[0].split("T"),
        *("instance", "lost", "p0", "incarnation=01234567", "reason=died"),
    ]


def test_columns_stand_below_each_other() -> None:
    shown = list(lines(told(LOST, RANK, ROUTER, CHANGED, lost="compacted")))
    assert {
        line.index(word) for line, word in zip(shown, ("gap", "inst", "rank", "rout", "inst"), strict=True)
    } == {shown[0].index("gap")}
    assert shown[0].endswith("compacted")
    assert "p0/0.0.1" in shown[2]
    assert shown[3].endswith("r0")
    assert shown[4].endswith('fields="state, url" coalesced')


def test_what_somebody_wrote_under_the_prefix_moves_no_cursor() -> None:
    (line,) = lines(told(HOSTILE))
    assert line.isprintable()


def test_json_is_an_object_per_line_with_the_names_of_the_logs() -> None:
    gap, lost = (json.loads(line) for line in document_lines(told(LOST, time_ms=1_764_000_000_123, lost="x")))
    assert gap == {"time": shown_time(1_764_000_000_123), "event": "gap", "revision": 812, "reason": "x"}
    assert lost["event"] == "instance_lost"
    assert (lost["incarnation"], lost["reason"]) == ("0123456789abcdef", "died")
    assert (shown_time(1_764_000_000_123) or "")[19:23] == ".123"
