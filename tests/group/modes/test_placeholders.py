"""Placeholders are replaced, kept, or named with their cause."""

from __future__ import annotations

import pytest

from pdcore.group.modes.placeholders import (
    Facts,
    cause_of,
    in_text,
    is_settled_later,
    malformed_in,
    names_in,
    substituted,
)
from pdcore.topology.records import Json

pytestmark = pytest.mark.unit

FACTS: Facts = {"port": 40000, "worker_ip": "10.0.0.1", "ports.kv_port": 40001, "ports.kv_port.count": 8}


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("{{port}}", 40000),
        ("http://{{worker_ip}}:{{port}}", "http://10.0.0.1:40000"),
        ("{{ports.kv_port}}", 40001),
        (
            {"kv_port": "{{ports.kv_port}}", "n": ["{{ports.kv_port.count}}", 1]},
            {"kv_port": 40001, "n": [8, 1]},
        ),
        ("{{net_device}}", "{{net_device}}"),
        ("a {{net_device}} {{port}}", "a {{net_device}} 40000"),
        ("{{ port }}", "{{ port }}"),
        (None, None),
        (True, True),
    ],
)
def test_values_keep_their_kind(value: Json, made: Json) -> None:
    assert substituted(value, FACTS) == made


def test_what_a_fact_says_is_not_read_again() -> None:
    assert in_text("{{a}}{{b}}", {"a": "{{b}}", "b": "1"}) == "{{b}}1"


def test_a_text_stays_a_text() -> None:
    assert in_text("{{port}}", FACTS) == "40000"


def test_names_are_found_at_any_depth() -> None:
    assert list(names_in({"{{k}}": ["{{a.b}}", {"x": "{{c}}{{d}}"}]})) == ["k", "a.b", "c", "d"]


def test_other_braces_are_told_apart() -> None:
    assert list(malformed_in(["{{ a }}", "{{a..b}}", "{{ok}}", "x }} y", "{{1}}"])) == [
        "{{ a }}",
        "{{a..b}}",
        "}}",
        "{{1}}",
    ]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("ports.bootstrap", "has no port band of that name"),
        ("port", "no port was assigned"),
        ("net_device", "--kv-transfer-ifname"),
        ("roles.decode.tp_size", "never declared its parallelism"),
        ("peer.ports.bootstrap", "the peer has no port band"),
        ("prot", "there is no such placeholder"),
    ],
)
def test_every_missing_name_has_a_cause(name: str, cause: str) -> None:
    assert cause in cause_of(name)


def test_what_only_a_place_tells_is_told_apart() -> None:
    assert [is_settled_later(name) for name in ("ports.x", "net_device", "roles.decode.tp_size", "prot")] == [
        True,
        True,
        False,
        False,
    ]
