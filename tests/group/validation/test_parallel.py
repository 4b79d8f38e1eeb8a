"""Parallel sizes: which may meet, by connector and version, and what ports they need."""

from __future__ import annotations

from typing import Any

import pytest

from tests.group.specs import LLAMA, MLA, codes, group, judge, pair

pytestmark = pytest.mark.unit

REFUSED = ["pairing_tp"]
UNVERIFIED = ["pairing_unverified"]


def tp(size: int | None) -> list[str]:
    return [] if size is None else [f"--tensor-parallel-size={size}"]


@pytest.mark.parametrize(
    ("mode", "version", "prefill", "decode", "expected"),
    [
        ("vllm-nixl", "0.13.0", 1, 4, []),
        ("vllm-nixl", "0.13.0", 4, 4, []),
        ("vllm-nixl", "0.13.0", 4, 1, REFUSED),
        ("vllm-nixl", "0.27.1", 4, 1, []),
        ("vllm-nixl", None, 4, 1, UNVERIFIED),
        ("vllm-nixl", "0.13.0", None, None, []),
        ("vllm-nixl", "0.13.0", 4, None, UNVERIFIED),
        ("vllm-mooncake", "0.27.1", 4, 1, []),
        ("vllm-mooncake", "0.27.1", 1, 4, []),
        ("sglang-mooncake", "0.5.7", 4, 1, []),
        ("sglang-nixl", "0.5.7", 4, 1, []),
        ("vllm-ascend-mooncake", "0.23.0", 4, 1, []),
        ("vllm-ascend-mooncake", "0.23.0", 4, 4, []),
        ("vllm-ascend-mooncake", "0.23.0", 1, 4, REFUSED),
        ("vllm-ascend-mooncake", None, 1, 4, REFUSED),
        ("vllm-ascend-mooncake", "0.23.0", None, 4, UNVERIFIED),
        ("custom", "0.13.0", 4, 1, []),
    ],
)
def test_the_direction_of_tensor_parallel_sizes(
    mode: str, version: str | None, prefill: int | None, decode: int | None, expected: list[str]
) -> None:
    found = codes(pair(mode, tp(prefill), tp(decode), backend_version=version))
    assert [code for code in found if code != "engine_version_below_recipe_floor"] == expected


def test_cards_stand_for_a_size_that_is_not_written() -> None:
    document = group(
        "vllm-ascend-mooncake",
        prefill={"gpu_selector": {"gpus_per_replica": 1}},
        decode={"backend_parameters": ["--tp", "2"]},
    )
    (only,) = judge(document)
    assert (only.code, only.values["prefill"], only.values["decode"]) == ("pairing_tp", 1, 2)


@pytest.mark.parametrize(
    ("mode", "model", "dp", "expected"),
    [
        ("vllm-ascend-mooncake", LLAMA, 2, ["ascend_dp_without_experts"]),
        ("vllm-ascend-mooncake", LLAMA, 1, []),
        ("vllm-ascend-mooncake", MLA, 2, []),
        ("vllm-ascend-mooncake", None, 2, ["ascend_dp_unverified"]),
        ("vllm-nixl", LLAMA, 2, []),
    ],
)
def test_data_parallel_ranks_on_ascend_need_experts(
    mode: str, model: Any, dp: int, expected: list[str]
) -> None:
    flags = ["--tensor-parallel-size=1", f"--data-parallel-size={dp}"]
    assert codes(pair(mode, flags, ["--tensor-parallel-size=1"]), model=model) == expected


@pytest.mark.parametrize(
    ("mode", "flags", "ports", "expected"),
    [
        ("vllm-ascend-mooncake", ["--tp=8"], "40000-40008", []),
        ("vllm-ascend-mooncake", ["--tp=8"], "40000-40007", ["band_exceeds_range"] * 2),
        ("vllm-ascend-mooncake", ["--tp=64"], None, ["band_exceeds_range"] * 2),
        ("vllm-nixl", ["--dp=4"], "40000-40004", []),
        ("vllm-nixl", ["--dp=4"], "40000-40003", ["band_exceeds_range"] * 2),
        ("vllm-mooncake", [], "40000-40000", ["band_exceeds_range"]),
        ("sglang-nixl", [], "40000-40001", []),
        ("pdcore", ["--tp=8"], "40000-40000", []),
        ("vllm-nixl", [], "40001-40000", ["port_range_invalid"]),
        ("vllm-nixl", [], "1-70000", ["port_range_invalid"]),
    ],
)
def test_a_member_fits_into_the_range_of_ports(
    mode: str, flags: list[str], ports: str | None, expected: list[str]
) -> None:
    assert codes(group(mode, backend_parameters=flags, network={"service_port_range": ports})) == expected


def test_a_band_that_is_too_wide_is_explained_with_arithmetic() -> None:
    document = group(
        "vllm-ascend-mooncake", backend_parameters=["--tp=8"], network={"service_port_range": "40000-40003"}
    )
    first = judge(document)[0]
    assert (
        first.message == "one prefill needs 9 ports (1 for HTTP, 8 for kv_port), the range 40000-40003 has 4"
    )
    assert first.values == {"role": "prefill", "needed": 9, "range": "40000-40003", "ports": 4}
