"""What callers send: exactly the protocol's fields, everything else refused with the field named and nothing allocated."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdcore.registry.facade.bodies import (
    MOST_QUERIED,
    Address,
    Shared,
    Wrong,
    decode,
    difference,
    parse_dp_rank,
    parse_query,
    parse_rank,
)
from pdcore.topology.keys import RankPosition

pytestmark = pytest.mark.unit

RANK: dict[str, Any] = {
    **{"attn_tp_size": 2, "attn_tp_rank": 1, "attn_cp_size": 1, "attn_cp_rank": 0},
    **{"attn_dp_size": 4, "attn_dp_rank": 3, "rank_ip": "10.0.0.1", "rank_port": 35123},
}
TOP = (1 << 63) - 1


def field_of(body: object, parse: Any = parse_rank) -> str | None:
    with pytest.raises(Wrong) as caught:
        parse(body)
    return caught.value.field


def test_a_rank_with_nothing_optional_gets_the_defaults() -> None:
    rank = parse_rank(RANK)
    assert rank.position == RankPosition(3, 0, 1)
    assert rank.address == Address("10.0.0.1", 35123)
    assert rank.shared == Shared(
        tp_size=2, cp_size=1, dp_size=4, block_sizes=(1,), kv_cache_dtype="bfloat16", max_prefill_tokens=None
    )


def test_every_optional_field_is_taken() -> None:
    given = {
        "block_sizes": [32, 16],
        "kv_cache_dtype": "int8",
        "max_prefill_tokens": 8192,
        "pp_size": 1,
        "new": {},
    }
    shared = parse_rank(RANK | given).shared
    assert (shared.block_sizes, shared.kv_cache_dtype, shared.max_prefill_tokens) == ((32, 16), "int8", 8192)
    assert parse_rank(RANK | {"block_size": 32}).shared.block_sizes == (32,)
    assert parse_rank(RANK | {"block_size": 32, "block_sizes": [32, 1]}).shared.block_sizes == (32, 1)


def test_the_dp_rank_has_two_names() -> None:
    renamed = {name: value for name, value in RANK.items() if name != "attn_dp_rank"} | {"system_dp_rank": 2}
    assert parse_rank(renamed).position.dp == 2
    assert parse_rank(RANK | {"system_dp_rank": 3}).position.dp == 3
    assert field_of(RANK | {"system_dp_rank": 2}) == "system_dp_rank"
    assert field_of(renamed | {"system_dp_rank": 4}) == "system_dp_rank"


@pytest.mark.parametrize("name", RANK)
def test_a_missing_field_is_named(name: str) -> None:
    assert field_of({key: value for key, value in RANK.items() if key != name}) == name
    assert field_of(RANK | {name: None}) == name


@pytest.mark.parametrize("name", [name for name in RANK if name != "rank_ip"])
@pytest.mark.parametrize("value", ["2", 2.0, True, [], {}, -1, 10**9, 1 << 80])
def test_what_is_no_integer_or_no_sane_one_is_named(name: str, value: object) -> None:
    assert field_of(RANK | {name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank_ip", ""),
        ("rank_ip", "0.0.0.0"),
        ("rank_ip", "::"),
        ("rank_ip", "::ffff:0.0.0.0"),
        ("rank_ip", "224.0.0.1"),
        ("rank_ip", "prefill-0"),
        ("rank_ip", "[::1]"),
        ("rank_ip", 7),
        ("rank_port", 0),
        ("rank_port", 65536),
        ("attn_tp_rank", 2),
        ("attn_cp_rank", 1),
        ("attn_dp_rank", 4),
        ("block_size", 0),
        ("block_sizes", []),
        ("block_sizes", [16, 16]),
        ("block_sizes", list(range(1, 18))),
        ("block_sizes", 16),
        ("kv_cache_dtype", ""),
        ("kv_cache_dtype", "x" * 129),
        ("kv_cache_dtype", 16),
        ("max_prefill_tokens", 0),
        ("max_prefill_tokens", "8192"),
        ("pp_size", 2),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: object) -> None:
    assert field_of(RANK | {name: value}) == name


def test_block_sizes_that_contradict_block_size_are_refused() -> None:
    assert field_of(RANK | {"block_size": 16, "block_sizes": [32]}) == "block_sizes"


def test_sizes_whose_product_is_absurd_are_refused_without_allocating() -> None:
    tracemalloc.start()
    try:
        assert field_of(RANK | {"attn_tp_size": 1024, "attn_dp_size": 1024}) == "attn_dp_size"
        assert field_of(RANK | {"attn_tp_size": 10**9}) == "attn_tp_size"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_addresses_of_both_families_are_taken() -> None:
    for ip in ("127.0.0.1", "::1", "fe80::1%lo", "2001:db8::5"):
        assert parse_rank(RANK | {"rank_ip": ip}).address.ip == ip
    assert str(Address("::1", 5)) == "[::1]:5"


def test_rooms_of_a_query_come_as_a_list_or_in_a_field() -> None:
    assert parse_query([1, TOP]) == parse_query({"bootstrap_rooms": [1, TOP]}) == [1, TOP]
    assert parse_query([]) == []
    assert len(parse_query([7] * MOST_QUERIED)) == MOST_QUERIED


@pytest.mark.parametrize(
    "rooms", [None, 7, "7", {}, [0], [-1], [TOP + 1], ["7"], [True], [1.0], [7] * (MOST_QUERIED + 1)]
)
def test_rooms_that_are_none_are_refused(rooms: object) -> None:
    assert field_of({"bootstrap_rooms": rooms}, parse_query) == "bootstrap_rooms"


def test_a_dp_rank_must_be_one_of_the_instances() -> None:
    body = {"bootstrap_room": 7, "dp_rank": 3}
    assert parse_dp_rank(body, 4) == parse_dp_rank(body, None) == (7, 3)
    assert field_of(body, lambda document: parse_dp_rank(document, 3)) == "dp_rank"
    for name, value in (
        ("bootstrap_room", 0),
        ("bootstrap_room", None),
        ("dp_rank", None),
        ("dp_rank", 1 << 20),
    ):
        assert field_of(body | {name: value}, lambda document: parse_dp_rank(document, None)) == name


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b"7", b"null", b'"x"'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Wrong) as caught:
        parse_rank(decode(raw))
    assert caught.value.field is None


def test_the_first_difference_is_named_and_silence_is_none() -> None:
    known = parse_rank(RANK | {"max_prefill_tokens": 8}).shared
    assert difference(known, parse_rank(RANK).shared) is None
    for name, value in (
        ("attn_tp_size", 4),
        ("attn_cp_size", 2),
        ("attn_dp_size", 8),
        ("kv_cache_dtype", "int8"),
        ("max_prefill_tokens", 9),
    ):
        differs = difference(known, parse_rank(RANK | {name: value}).shared)
        assert differs is not None
        assert differs[0] == name
    sizes = difference(known, parse_rank(RANK | {"block_size": 2}).shared)
    assert sizes == ("block_sizes", "the instance has 1, this rank says 2")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(RANK)), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    JSON, st.dictionaries(st.sampled_from([*RANK, "block_size", "block_sizes", "pp_size"]), JSON, max_size=4)
)
def test_whatever_is_sent_is_read_or_refused(document: object, changes: dict[str, object]) -> None:
    for parse, value in (
        (parse_rank, document),
        (parse_rank, RANK | changes),
        (parse_query, document),
        (lambda body: parse_dp_rank(body, None), document),
    ):
        try:
            parse(value)
        except Wrong:
            continue
