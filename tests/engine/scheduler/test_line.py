"""The order of the line by itself."""

from __future__ import annotations

import pytest

from pdcore.engine.scheduler.line import LONGEST_OVERTAKEN_S, MOST_OVERTAKEN, Line, Verdict
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.request import Peer, Request
from tests.engine.scheduler.simulation import start

pytestmark = pytest.mark.unit

A, B = ("a", "1"), ("b", "1")


def request(name: str, place: Place = Place.PREALLOC, peer: Peer | None = None) -> Request:
    return Request(start=start(name), deadline=60, context_length=256, place=place, peer=peer)


def serve(line: Line, now: float = 0.0, **verdicts: Verdict) -> list[str]:
    """Who enters; everybody fits of whom nothing else is said."""
    entered: list[str] = []
    line.serve(
        now,
        judge=lambda r: verdicts.get(r.request_id, Verdict.FITS),
        enter=lambda r: entered.append(r.request_id),
        is_worth_holding=lambda r: True,
    )
    return entered


def test_the_retracted_come_last_and_peers_in_turn() -> None:
    line = Line()
    line.join(request("again", Place.RETRACTED), 0)
    for name, peer in (("a1", A), ("b1", B), ("a2", A), ("b2", B)):
        line.join(request(name, peer=peer), 0)
    assert serve(line) == ["a1", "b1", "a2", "b2", "again"]
    assert len(line) == 0


def test_a_full_lane_closes_for_all_behind_and_for_no_other() -> None:
    line = Line()
    for name, peer in (("a1", A), ("b1", B), ("a2", A), ("b2", B)):
        line.join(request(name, peer=peer), 0)
    assert serve(line, a1=Verdict.LANE_FULL) == ["b1", "b2"]
    assert serve(line) == ["a1", "a2"]


def test_what_does_not_fit_its_lane_is_overtaken_in_it_alone_and_then_closes_it_alone() -> None:
    line = Line()
    line.join(request("large", peer=A), 0)
    for number in range(MOST_OVERTAKEN):
        line.join(request(f"b{number}", peer=B), 0)
        assert serve(line, large=Verdict.TOO_LARGE_FOR_LANE) == [f"b{number}"]
    for number in range(MOST_OVERTAKEN):
        line.join(request(f"a{number}", peer=A), 0)
        assert serve(line, large=Verdict.TOO_LARGE_FOR_LANE) == [f"a{number}"]
    line.join(request("late", peer=A), 0)
    line.join(request("other", peer=B), 0)
    assert serve(line, large=Verdict.TOO_LARGE_FOR_LANE) == ["other"]
    assert serve(line) == ["large", "late"]


def test_the_retracted_are_overtaken_by_everybody_who_enters_and_then_come_first() -> None:
    line = Line()
    line.join(request("again", Place.RETRACTED), 0)
    for number in range(MOST_OVERTAKEN):
        line.join(request(f"f{number}"), 0)
        assert serve(line, again=Verdict.TOO_LARGE) == [f"f{number}"]
    line.join(request("late"), 0)
    assert serve(line, again=Verdict.TOO_LARGE) == []
    assert serve(line) == ["again", "late"]


def test_one_that_was_overtaken_long_ago_comes_first() -> None:
    line = Line()
    line.join(request("large"), 0)
    line.join(request("small"), 0)
    assert serve(line, large=Verdict.TOO_LARGE) == ["small"]
    line.join(request("late"), 1)
    assert serve(line, LONGEST_OVERTAKEN_S, large=Verdict.TOO_LARGE) == []
    assert serve(line, LONGEST_OVERTAKEN_S) == ["large", "late"]


def test_nobody_enters_a_closed_line_and_whoever_leaves_is_forgotten() -> None:
    line = Line()
    members = [request("a"), request("b", Place.RETRACTED)]
    for member in members:
        line.join(member, 0)
    assert serve(line, a=Verdict.CLOSED) == []
    assert line.waiting_since(0) == (members[0],), "who never had blocks"
    for member in members:
        line.leave(member)
    assert (len(line), line.waiting_since(9)) == (0, ())
