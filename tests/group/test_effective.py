"""What a role really gets, and where each value comes from."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.group.effective import EffectiveRole, effective_roles, parallelism_of
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.spec import OVERRIDES, spec_of
from tests.group.specs import Document, group

pytestmark = pytest.mark.unit

VALUES: dict[str, tuple[Any, Any]] = {
    "backend": ("vllm", "custom"),
    "backend_version": ("1", "2"),
    "image_name": ("a", "b"),
    "run_command": ("a", "b"),
    "backend_parameters": (["--a"], []),
    "env": ({"A": "1"}, {}),
    "gpu_selector": ({"gpus_per_replica": 1}, {}),
    "worker_selector": ({"a": "1"}, {}),
    "gpu_type_selector": (["a"], []),
    "extended_kv_cache": ({"kind": "local"}, {}),
    "speculative_config": ({"a": 1}, {}),
    "lora_list": (["a"], []),
}


def roles(document: Document) -> dict[str, EffectiveRole]:
    spec = spec_of(document)
    return effective_roles(spec, catalogue().mode(spec.mode))


@pytest.mark.parametrize("field", OVERRIDES)
def test_a_field_is_inherited_while_null_and_replaced_as_a_whole_else(field: str) -> None:
    shared, own = VALUES[field]
    document = group("custom", **{field: shared}, decode={field: own})
    spec, found = spec_of(document), roles(document)
    assert getattr(found["prefill"], field) == getattr(spec, field)
    assert found["prefill"].sources[field] == "inherited"
    decode = spec.role("decode")
    assert decode is not None
    assert getattr(found["decode"], field) == getattr(decode, field) != getattr(spec, field)
    assert found["decode"].sources[field] == "user"


def test_the_modes_engine_and_a_routers_dependencies_follow_from_the_rest() -> None:
    found = roles(group("sglang-nixl"))
    assert (found["prefill"].backend, found["prefill"].sources["backend"]) == ("sglang", "mode")
    assert (found["router"].dependencies, found["router"].sources["dependencies"]) == (
        ("prefill", "decode"),
        "derived",
    )
    assert found["decode"].dependencies == ()
    assert "image_name" not in found["prefill"].sources


def test_a_router_inherits_no_flags_image_or_command_but_the_environment() -> None:
    document = group(backend_parameters=["--x"], image_name="i", run_command="c", env={"A": "1"})
    router = roles(document)["router"]
    assert (router.backend_parameters, router.image_name, router.run_command) == (None, None, None)
    assert router.env == {"A": "1"}
    own = group(backend_parameters=["--x"], router={"backend_parameters": ["--y"]})
    assert roles(own)["router"].backend_parameters == ("--y",)


def test_a_custom_router_inherits_image_and_command_unless_it_is_pdcores_own() -> None:
    shared = {"image_name": "i", "run_command": "c", "backend_parameters": ["--x"]}
    theirs = roles(group("custom", **shared, router={"protocol": None}))["router"]
    assert (theirs.image_name, theirs.run_command, theirs.backend_parameters) == ("i", "c", None)
    ours = roles(group("custom", **shared))["router"]
    assert (ours.image_name, ours.run_command, ours.protocol) == (None, None, "nixl")
    assert ours.sources["protocol"] == "user"


@pytest.mark.parametrize(
    ("mode", "fields", "expected"),
    [
        ("vllm-nixl", {}, (None, None, None)),
        ("vllm-nixl", {"backend_parameters": ["--tp=4"]}, (4, 1, 1)),
        ("vllm-nixl", {"backend_parameters": ["--dp=4"]}, (None, 4, None)),
        ("vllm-nixl", {"gpu_selector": {"gpus_per_replica": 8}}, (8, 1, 1)),
        ("vllm-nixl", {"gpu_selector": {"gpu_ids": [f"m:x:{n}" for n in range(4)]}}, (2, 1, 1)),
        ("vllm-nixl", {"gpu_selector": {"gpu_ids": ["m1:x:0", "m2:x:0"]}}, (None, None, None)),
        (
            "vllm-nixl",
            {"gpu_selector": {"gpus_per_replica": 8}, "backend_parameters": ["--dp=2"]},
            (None, 2, None),
        ),
        ("pdcore", {}, (1, 1, 1)),
        ("pdcore", {"backend_parameters": ["--tp", "2", "--dp", "3"]}, (2, 3, 1)),
    ],
)
def test_parallel_sizes_are_declared_or_follow_from_pinned_cards(
    mode: str, fields: dict[str, Any], expected: tuple[int | None, int | None, int | None]
) -> None:
    found = parallelism_of(roles(group(mode, prefill=fields))["prefill"])
    assert (found.tp, found.dp, found.pp) == expected
