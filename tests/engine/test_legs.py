"""Bootstrap fields and router headers: types, ranges, and the table of refusals."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pdcore.engine.legs import (
    Expectation,
    Leg,
    Phase,
    choose_dp_rank,
    parse_expectation,
    parse_leg,
    parse_legs,
    parse_rooms,
    public_request_id,
    refusal,
    stale_peer,
)
from pdcore.errors import ApiError
from pdcore.topology.records import Role

pytestmark = pytest.mark.unit

GOOD: dict[str, Any] = {"bootstrap_room": 7, "bootstrap_host": "10.0.0.1", "bootstrap_port": 18800}


def test_a_leg_is_read_from_the_body() -> None:
    assert parse_leg(GOOD) == Leg(room=7, host="10.0.0.1", port=18800, dp_rank=None)
    assert parse_leg(GOOD | {"disagg_prefill_dp_rank": 3}).dp_rank == 3


@pytest.mark.parametrize("room", [1, 7, 2**63 - 1])
def test_rooms_are_positive_63_bit_integers(room: int) -> None:
    assert parse_leg(GOOD | {"bootstrap_room": room}).room == room
    assert parse_rooms({"bootstrap_room": room}, 1) == (room,)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("bootstrap_room", [None, 0, -1, 2**63, 2**64, 10**40, "7", 7.0, True, [7], {}]),
        ("bootstrap_host", [None, "", 5, ["a"], "x" * 254]),
        ("bootstrap_port", [None, 0, -1, 65536, "18800", 1.0, True]),
        ("disagg_prefill_dp_rank", [-1, 65536, 10**9, "0", 0.0, True, []]),
    ],
)
def test_hostile_fields_are_refused_by_name(field: str, bad: list[object]) -> None:
    for value in bad:
        with pytest.raises(ApiError) as caught:
            parse_legs(GOOD | {field: value}, 1)
        assert (caught.value.status, caught.value.param) == (400, field)


MANY: dict[str, Any] = {
    "bootstrap_room": [7, 8],
    "bootstrap_host": ["10.0.0.1"] * 2,
    "bootstrap_port": [18800] * 2,
    "disagg_prefill_dp_rank": 1,
}


def test_several_answers_have_a_leg_each() -> None:
    first, second = parse_legs(MANY, 2)
    assert first == Leg(room=7, host="10.0.0.1", port=18800, dp_rank=1)
    assert second == Leg(room=8, host="10.0.0.1", port=18800, dp_rank=1)
    plain = MANY | {"bootstrap_host": "10.0.0.1", "bootstrap_port": 18800, "disagg_prefill_dp_rank": [1, 1]}
    assert parse_legs(plain, 2) == (first, second)
    assert parse_rooms({"bootstrap_room": [7, 8]}, 2) == (7, 8)
    assert parse_rooms({}, 2) == (None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"bootstrap_room": [7, 7]},
        {"bootstrap_room": [7]},
        {"bootstrap_room": [7, 8, 9]},
        {"bootstrap_room": 7},
        {"bootstrap_room": [7, 0]},
        {"bootstrap_room": [7, "8"]},
        {"bootstrap_room": [7, [8]]},
        {"bootstrap_host": ["10.0.0.1"]},
        {"bootstrap_host": ["10.0.0.1", "10.0.0.2"]},
        {"bootstrap_port": [18800, 18801]},
        {"disagg_prefill_dp_rank": [0]},
    ],
)
def test_legs_that_do_not_fit_their_answers_are_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        parse_legs(MANY | change, 2)
    assert (caught.value.status, caught.value.param) == (400, next(iter(change)))


def test_a_missing_field_is_named() -> None:
    for field in GOOD:
        with pytest.raises(ApiError, match=f"{field} is missing") as caught:
            parse_leg({key: value for key, value in GOOD.items() if key != field})
        assert caught.value.param == field


@pytest.mark.parametrize(
    ("chosen", "size", "expected"), [(None, 1, 0), (0, 1, 0), (1, 2, 1), (None, 2, None), (1, 1, None)]
)
def test_a_dp_rank_is_what_was_chosen_or_the_only_one(
    chosen: int | None, size: int, expected: int | None
) -> None:
    leg = Leg(room=1, host="h", port=1, dp_rank=chosen)
    if expected is not None:
        assert choose_dp_rank(leg, size) == expected
        return
    with pytest.raises(ApiError) as caught:
        choose_dp_rank(leg, size)
    assert caught.value.param == "disagg_prefill_dp_rank"


def test_expectations_are_read_from_headers() -> None:
    headers = {
        "x-pdcore-prefill-incarnation": "p1",
        "x-pdcore-decode-incarnation": "d1",
        "x-pdcore-remaining-ms": "1500",
    }
    assert parse_expectation(headers) == Expectation(prefill="p1", decode="d1", remaining_ms=1500)
    assert parse_expectation({}) == Expectation(prefill=None, decode=None, remaining_ms=None)


@pytest.mark.parametrize("raw", ["", "-1", "1.5", "soon", "86400001", "9" * 40, "0" * 12 + "9" * 9, "١٢"])
def test_a_malformed_budget_is_refused(raw: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_expectation({"x-pdcore-remaining-ms": raw})
    assert caught.value.param == "x-pdcore-remaining-ms"


OURS, OTHER = "ours", "other"
Reason = Literal["stale", "draining", "not_ready"]


@pytest.mark.parametrize(
    ("role", "phase", "prefill", "decode", "reason"),
    [
        ("prefill", "serving", None, None, None),
        ("prefill", "serving", OURS, OTHER, None),
        ("prefill", "serving", OTHER, OURS, "stale"),
        ("decode", "serving", OTHER, OURS, None),
        ("decode", "serving", OURS, OTHER, "stale"),
        ("unified", "serving", None, OURS, None),
        ("unified", "serving", None, OTHER, "stale"),
        ("unified", "serving", OTHER, None, "stale"),
        ("decode", "draining", OTHER, OURS, "draining"),
        ("decode", "draining", OTHER, OTHER, "draining"),
        ("prefill", "starting", OURS, None, "not_ready"),
        ("prefill", "failed", OURS, None, "not_ready"),
    ],
)
def test_refusals(
    role: Role, phase: Phase, prefill: str | None, decode: str | None, reason: Reason | None
) -> None:
    expected = Expectation(prefill=prefill, decode=decode, remaining_ms=None)
    error = refusal(role, phase, OURS, expected)
    assert (None if error is None else error.refused) == reason
    if error is not None:
        assert error.status == 421
        assert error.headers() == {"x-pdcore-refused": reason}


def test_an_unknown_peer_is_a_stale_view() -> None:
    assert stale_peer("h:1", "x").headers() == {"x-pdcore-refused": "stale"}


@pytest.mark.parametrize("given", ["a", "req-1", "!" + "~" * 127])
def test_a_visible_request_id_is_kept(given: str) -> None:
    assert public_request_id({"x-request-id": given}) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "é", "a\x7f", "a\r\nX-Evil: 1"])
def test_any_other_is_not_ours_to_repeat(given: str) -> None:
    assert public_request_id({"x-request-id": given}) is None
    assert public_request_id({}) is None
