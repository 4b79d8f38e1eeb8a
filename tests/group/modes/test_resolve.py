"""Which mode an engine gets, and the code of every case in which it gets none."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.resolve import resolve
from pdcore.group.modes.vendors import vendor_of, vendors_of
from pdcore.group.spec import MODES
from pdcore.topology.topology import build
from tests.support.fleet import complete, instance_record, stored

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("engine", "vendors", "chosen", "mode", "code", "candidates"),
    [
        ("vllm", ["nvidia"], None, "vllm-nixl", None, ()),
        ("sglang", ["nvidia"], None, "sglang-mooncake", None, ()),
        ("vllm", ["ascend"], None, "vllm-ascend-mooncake", None, ()),
        ("pdcore", ["cpu"], None, "pdcore", None, ()),
        ("pdcore", ["ascend"], None, "pdcore", None, ()),
        ("sglang", ["ascend"], None, None, "no_built_in_recipe", ()),
        ("vllm", ["amd"], None, None, "no_built_in_recipe", ()),
        ("mindie", ["ascend"], None, None, "no_built_in_recipe", ()),
        ("custom", ["nvidia"], None, None, "no_built_in_recipe", ()),
        ("vllm", ["nvidia", "ascend"], None, None, "multiple_vendors", ("ascend", "nvidia")),
        ("vllm", ["nvidia", "amd"], None, "vllm-nixl", None, ()),
        ("vllm", ["nvidia", "ascend"], "ascend", "vllm-ascend-mooncake", None, ()),
        ("vllm", ["nvidia", "ascend"], "nvidia", "vllm-nixl", None, ()),
        ("vllm", [], None, None, "vendors_unknown", ()),
        ("vllm", [], "nvidia", None, "vendors_unknown", ()),
        ("vllm", ["nvidia"], "ascend", None, "vendor_not_in_cluster", ()),
        ("sglang", ["nvidia", "ascend"], "ascend", None, "no_built_in_recipe", ()),
    ],
)
def test_every_case_has_its_outcome(
    engine: str,
    vendors: Collection[str],
    chosen: str | None,
    mode: str | None,
    code: str | None,
    candidates: tuple[str, ...],
) -> None:
    found = resolve(catalogue(), engine, vendors, chosen)
    assert (found.mode, found.code, found.candidates) == (mode, code, candidates)
    assert found.message


def test_several_recipes_of_which_none_is_preferred_are_left_to_a_person() -> None:
    shipped = catalogue()
    equal = tuple(msgspec.structs.replace(one, preferred=False) for one in shipped.modes)
    found = resolve(msgspec.structs.replace(shipped, modes=equal), "vllm", ["nvidia"])
    assert (found.mode, found.code) == (None, "no_preferred_recipe")
    assert "vllm-mooncake, vllm-nixl" in found.message


def test_every_mode_is_an_option_and_says_why_it_is_not_one_here() -> None:
    found = resolve(catalogue(), "vllm", ["nvidia"])
    codes = {one.mode: one.code for one in found.options}
    assert codes == {
        "pdcore": "backend_mismatch",
        "vllm-nixl": None,
        "vllm-mooncake": None,
        "sglang-mooncake": "backend_mismatch",
        "sglang-nixl": "backend_mismatch",
        "vllm-ascend-mooncake": "vendor_mismatch",
        "custom": None,
    }
    ascend = next(one for one in found.options if one.mode == "vllm-ascend-mooncake")
    assert ascend.params == {"wanted": ["ascend"], "given": ["nvidia"]}
    assert ascend.message == "is for ascend, and there is nvidia"


@pytest.mark.parametrize("vendors", [[], ["amd"], ["nvidia", "ascend"]])
@pytest.mark.parametrize("engine", ["vllm", "mindie", "pdcore"])
def test_custom_is_always_possible_and_never_derived(engine: str, vendors: list[str]) -> None:
    found = resolve(catalogue(), engine, vendors)
    assert found.mode != "custom"
    assert next(one for one in found.options if one.mode == "custom").eligible


def test_the_document_has_every_option() -> None:
    document = resolve(catalogue(), "vllm", ["nvidia"]).document()
    assert document["mode"] == "vllm-nixl"
    options = document["options"]
    assert isinstance(options, list)
    assert len(options) == len(MODES)


def test_vendors_are_those_of_ready_instances() -> None:
    assert [vendor_of(device) for device in ("cpu", "npu:3", "cuda:0", "abacus")] == [
        "cpu",
        "ascend",
        "nvidia",
        None,
    ]
    ready = complete("p0", instance_record("prefill"))
    starting = complete("d0", instance_record("decode", state="starting"))
    assert vendors_of(build(stored(ready), 1)) == {"cpu"}
    assert vendors_of(build(stored(starting), 1)) == frozenset()
