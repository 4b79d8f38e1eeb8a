"""The direction of tensor parallelism, by connector and version."""

from __future__ import annotations

import pytest

from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.mode import TpDirection
from pdcore.group.modes.tp_rule import is_allowed, rule_of
from pdcore.group.modes.versions import is_at_least, is_provably_below

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("mode", "versions", "direction"),
    [
        ("pdcore", (None, None), "one_divides_other"),
        ("vllm-nixl", (None, None), "decode_at_least_prefill"),
        ("vllm-nixl", ("0.11.0", "0.11.0"), "decode_at_least_prefill"),
        ("vllm-nixl", ("0.28.0", "0.28.0"), "any"),
        ("vllm-nixl", ("0.28.0+cu129", "0.28.0rc1"), "any"),
        ("vllm-nixl", ("0.28.0", None), "decode_at_least_prefill"),
        ("vllm-nixl", ("0.28.0", "nightly"), "decode_at_least_prefill"),
        ("vllm-nixl", ("0.28.0", "0.11.0"), "decode_at_least_prefill"),
        ("vllm-mooncake", (None, None), "any"),
        ("sglang-mooncake", (None, None), "any"),
        ("sglang-nixl", (None, None), "any"),
        ("vllm-ascend-mooncake", ("0.23.0", "0.23.0"), "prefill_at_least_decode"),
        ("custom", (None, None), "any"),
    ],
)
def test_the_direction_depends_on_connector_and_version(
    mode: str, versions: tuple[str | None, ...], direction: TpDirection
) -> None:
    assert rule_of(catalogue().mode(mode), versions).direction == direction


@pytest.mark.parametrize(
    ("direction", "allowed"),
    [
        ("any", {(1, 4), (4, 1), (4, 4), (2, 3)}),
        ("decode_at_least_prefill", {(1, 4), (4, 4), (2, 3)}),
        ("prefill_at_least_decode", {(4, 1), (4, 4)}),
        ("one_divides_other", {(1, 4), (4, 1), (4, 4)}),
    ],
)
def test_which_sizes_may_meet(direction: TpDirection, allowed: set[tuple[int, int]]) -> None:
    sizes = [(1, 4), (4, 1), (4, 4), (2, 3)]
    assert {pair for pair in sizes if is_allowed(direction, *pair)} == allowed


@pytest.mark.parametrize(
    ("version", "at_least", "below"),
    [
        ("0.27.1", True, False),
        ("0.27", False, True),
        ("v0.27.0", False, True),
        ("1.0", True, False),
        ("0.27.0rc1", False, False),
        ("0.27.0+local", False, False),
        ("main", None, False),
        ("", None, False),
        (None, None, False),
        ("9" * 99, None, False),
    ],
)
def test_versions_against_a_range(version: str | None, at_least: bool | None, below: bool) -> None:
    assert is_at_least(version, ">=0.27.1") is at_least
    assert is_provably_below(version, ">=0.27.1") is below
    assert not is_provably_below(version, None)
