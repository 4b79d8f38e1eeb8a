"""Accelerators are not mixed within a role, and what will not help is said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.group.specs import group, judge

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("prefill", "path"),
    [
        ({"gpu_type_selector": ["H200", "A100"]}, "roles.prefill.gpu_type_selector"),
        ({"gpu_selector": {"gpu_ids": ["m1:H200:0", "m1:A100:1"]}}, "roles.prefill.gpu_selector"),
    ],
)
def test_a_role_has_one_type_of_accelerator(prefill: dict[str, Any], path: str) -> None:
    (only,) = (one for one in judge(group(prefill=prefill)) if one.severity == "refused")
    assert (only.code, only.path) == ("mixed_accelerators", path)
    assert only.values == {"role": "prefill", "types": ["a100", "h200"]}


def test_roles_may_have_different_types() -> None:
    assert (
        judge(group(prefill={"gpu_type_selector": ["H200", "h200"]}, decode={"gpu_type_selector": ["A100"]}))
        == ()
    )


def helps(document: dict[str, Any]) -> list[str]:
    return [one.message for one in judge(document) if one.code == "pd_may_not_help"]


def test_one_device_in_all_may_not_help() -> None:
    one = {"gpu_selector": {"gpu_ids": ["m1:H200:0"]}}
    (said,) = helps(group(prefill={"replicas": 1, "backend_parameters": ["--x"], **one}, decode=one))
    assert "share one accelerator (m1:H200:0)" in said
    other = {"gpu_selector": {"gpu_ids": ["m1:H200:1"]}}
    assert helps(group(prefill={"replicas": 1, **one}, decode=other)) == []


def test_equal_parameters_and_as_many_members_may_not_help() -> None:
    assert len(helps(group(prefill={"replicas": 1}))) == 1
    assert helps(group(prefill={"replicas": 2})) == []
    assert helps(group(prefill={"replicas": 1, "backend_parameters": ["--x"]})) == []


@pytest.mark.parametrize(
    ("version", "advised"),
    [("0.27.0", True), ("0.27.1", False), ("0.27.0rc1", False), ("0.26.0+mine", False), (None, False)],
)
def test_an_old_engine_is_advice(version: str | None, advised: bool) -> None:
    found = judge(group(backend_version=version))
    assert {one.code for one in found} == ({"engine_version_below_recipe_floor"} if advised else set())
    assert all(one.severity == "advisory" for one in found)
