"""What prefill and decode must agree on by their flags, factor by factor."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.topology.records import Json
from tests.group.specs import LLAMA, codes, group, judge, pair

pytestmark = pytest.mark.unit

UNVERIFIED = ["pairing_unverified"]
LENGTH = ["pairing_context_length"]
HYBRID = ["pairing_hybrid_kv_cache"]
OFF, ON = "--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager"

Row = tuple[list[str], list[str], Any, list[str]]

CONTEXT: list[Row] = [
    ([], [], None, []),
    (["--max-model-len=4096"], ["--max-model-len=4096"], None, []),
    (["--max-model-len=4096"], ["--max-model-len", "8192"], None, LENGTH),
    (["--max-model-len=4096"], ["--context_length=4096"], None, []),
    (["--max-model-len=4096", "--max-model-len=8192"], ["--max-model-len=8192"], None, []),
    (["--max-model-len=128k"], ["--max-model-len=32k"], None, LENGTH),
    (["--max-model-len=128k"], ["--max-model-len=128000"], None, []),
    (["--max-model-len=128K"], ["--max-model-len=131072"], None, []),
    (["--max-model-len=128k"], ["--max-model-len=128K"], None, LENGTH),
    (["--max-model-len=odd"], ["--max-model-len=odd"], None, []),
    (["--max-model-len=odd"], ["--max-model-len=4096"], None, UNVERIFIED),
    (["--max-model-len=4096"], [], None, UNVERIFIED),
    (["--max-model-len=4096"], [], LLAMA, LENGTH),
    ([], ["--max-model-len=128K"], LLAMA, []),
    (
        ["--max-model-len=4096"],
        ['--hf-overrides={"max_position_embeddings": 4096}'],
        LLAMA,
        [],
    ),
    (["--hf-overrides=odd"], [], LLAMA, UNVERIFIED * 3),
]

DTYPES: list[Row] = [
    (["--dtype=float16"], ["--dtype=half"], None, []),
    (["--dtype=float16"], ["--dtype=bfloat16"], None, ["pairing_dtype", "pairing_kv_dtype"]),
    (["--dtype=auto"], [], None, []),
    (["--dtype=bfloat16"], ["--dtype=auto"], LLAMA, []),
    (["--dtype=float16"], [], LLAMA, ["pairing_dtype", "pairing_kv_dtype"]),
    (["--dtype=float16"], [], None, [*UNVERIFIED, *UNVERIFIED]),
    (["--kv-cache-dtype=FP8"], ["--kv_cache_dtype=fp8"], None, []),
    (["--kv-cache-dtype=fp8"], ["--kv-cache-dtype=fp8_e5m2"], None, ["pairing_kv_dtype"]),
    (["--kv-cache-dtype=fp8"], ["--kv-cache-dtype=auto"], None, UNVERIFIED),
    (["--kv-cache-dtype=fp8"], [], LLAMA, ["pairing_kv_dtype"]),
    (["--kv-cache-dtype=bfloat16"], [], LLAMA, []),
]

WRITTEN: list[Row] = [
    (["--block-size=16"], ["--block-size=16"], None, []),
    (["--block-size=16"], ["--page-size=32"], None, ["pairing_block_size"]),
    (["--block-size=16"], [], None, UNVERIFIED),
    (["--kv-cache-layout=HND"], ["--kv-cache-layout=nhd"], None, ["pairing_kv_layout"]),
    (["--kv-cache-layout=HND"], ["--kv-cache-layout=hnd"], None, []),
    (["--kv-cache-layout=HND"], [], None, UNVERIFIED),
]


@pytest.mark.parametrize("mode", ["vllm-nixl", "vllm-mooncake", "sglang-mooncake", "sglang-nixl", "custom"])
@pytest.mark.parametrize(("prefill", "decode", "model", "expected"), [*CONTEXT, *DTYPES, *WRITTEN])
def test_a_factor(
    mode: str, prefill: list[str], decode: list[str], model: dict[str, Json] | None, expected: list[str]
) -> None:
    assert codes(pair(mode, prefill, decode), model=model) == expected


@pytest.mark.parametrize(
    ("mode", "version", "prefill", "decode", "expected"),
    [
        ("vllm-nixl", "0.27.0", [], [], []),
        ("vllm-nixl", "0.27.0", [OFF], [], []),
        ("vllm-nixl", "0.27.0", [ON], [], HYBRID),
        ("vllm-nixl", "0.27.0", [ON, OFF], [], []),
        ("vllm-nixl", None, [ON], [OFF], HYBRID),
        ("vllm-nixl", "0.27.1", [ON], [OFF], HYBRID),
        ("vllm-nixl", "0.27.1", [ON], [ON], []),
        ("custom", "0.27.1", [ON], [], HYBRID),
        ("vllm-mooncake", "0.27.0", [f"{OFF}=false"], [], HYBRID),
        ("sglang-nixl", "0.5.7", [ON], [], []),
    ],
)
def test_the_hybrid_cache_manager_is_the_same_on_both_sides(
    mode: str, version: str | None, prefill: list[str], decode: list[str], expected: list[str]
) -> None:
    found = codes(pair(mode, prefill, decode, backend_version=version))
    assert [code for code in found if code != "engine_version_below_recipe_floor"] == expected


def test_a_difference_tells_both_values_and_where_it_was_written() -> None:
    document = group(
        backend_parameters=["--max-model-len=32k"], decode={"backend_parameters": ["--max-model-len=8k"]}
    )
    (only,) = judge(document)
    assert (only.code, only.path) == ("pairing_context_length", "roles.decode.backend_parameters")
    assert only.values == {"factor": "context length", "prefill": "32k (32000)", "decode": "8k (8000)"}


def test_what_differs_in_the_groups_own_flags_cannot_be() -> None:
    assert codes(group(backend_parameters=["--max-model-len=32k", "--dtype=half", "--block-size=16"])) == []


def test_an_unverified_factor_is_advice_with_its_name() -> None:
    (only,) = judge(pair("vllm-nixl", ["--block-size=16"], []))
    assert (only.severity, only.values["factor"], only.values["prefill"], only.values["decode"]) == (
        "advisory",
        "block size",
        "16",
        None,
    )
