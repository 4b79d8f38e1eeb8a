"""What vLLM reads from the environments of prefill and decode makes a pair, in every mode of vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pdcore.topology.records import Json
from tests.group.specs import (
    CHUNKED,
    LLAMA,
    MLA,
    RECURRENT,
    SLIDING,
    Document,
    codes,
    environments,
    group,
    judge,
    pair,
    role,
)

pytestmark = pytest.mark.unit

LAYOUT = "VLLM_KV_CACHE_LAYOUT"
NO_MLA = "VLLM_MLA_DISABLE"
SSM = "VLLM_SSM_CONV_STATE_LAYOUT"
CHUNKS = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
INVARIANT = "VLLM_BATCH_INVARIANT"
UNVERIFIED = ["pairing_unverified"]
DIFFER = ["pairing_kv_layout"]
ON = "--no-disable-hybrid-kv-cache-manager"

Model = Mapping[str, Json] | None


def connector(**options: Any) -> list[str]:
    return ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", **options})]


@pytest.mark.parametrize("mode", ["vllm-nixl", "vllm-mooncake", "vllm-ascend-mooncake"])
@pytest.mark.parametrize(
    ("prefill", "decode", "model", "expected"),
    [
        ("NHD", "NHD", None, []),
        ("NHD", "LBNHC", None, []),
        ("HND", "lbhnc", None, []),
        ("NHD", "HND", None, UNVERIFIED),
        ("NHD", "HND", LLAMA, DIFFER),
        ("BLHNC", "BLNHC", LLAMA, DIFFER),
        ("NHD", "HND", MLA, []),
        ("NHD", None, LLAMA, UNVERIFIED),
        ("NHD", "odd", LLAMA, UNVERIFIED),
    ],
)
def test_the_layout_of_the_kv_cache(
    mode: str, prefill: str, decode: str | None, model: Model, expected: list[str]
) -> None:
    sides = [{} if said is None else {LAYOUT: said} for said in (prefill, decode)]
    assert codes(environments(mode, *sides), model=model) == expected


def test_latents_that_one_side_switches_off_have_a_layout_again() -> None:
    document = environments("vllm-nixl", {LAYOUT: "NHD", NO_MLA: "1"}, {LAYOUT: "HND"})
    assert codes(document, model=MLA) == ["pairing_kv_layout", "pairing_mla"]


@pytest.mark.parametrize(
    ("mode", "prefill", "decode", "options", "model", "expected"),
    [
        ("vllm-nixl", "HND", "NHD", {"enable_permute_local_kv": True}, LLAMA, []),
        (
            "vllm-nixl",
            "HND",
            "NHD",
            {"kv_connector_extra_config": {"enable_permute_local_kv": True}},
            LLAMA,
            [],
        ),
        ("vllm-nixl", "NHD", "HND", {"enable_permute_local_kv": True}, LLAMA, DIFFER),
        ("vllm-nixl", "HND", "NHD", {}, LLAMA, DIFFER),
        ("vllm-nixl", "HND", "NHD", {"enable_permute_local_kv": True}, SLIDING, DIFFER),
        ("vllm-nixl", "HND", "NHD", {"kv_buffer_device": "cpu"}, LLAMA, UNVERIFIED),
        ("vllm-nixl", "HND", "NHD", {"kv_connector_module_path": "x"}, LLAMA, UNVERIFIED * 2),
        ("vllm-mooncake", "HND", "NHD", {"enable_permute_local_kv": True}, LLAMA, UNVERIFIED * 2),
    ],
)
def test_a_connector_of_the_users_own_may_change_that(
    mode: str, prefill: str, decode: str, options: dict[str, Any], model: Model, expected: list[str]
) -> None:
    document = environments(mode, {LAYOUT: prefill}, {LAYOUT: decode})
    role(document, "decode")["backend_parameters"] = connector(**options)
    assert codes(document, model=model) == expected


def test_hybrid_caches_are_not_permuted() -> None:
    document = environments("vllm-nixl", {LAYOUT: "HND"}, {LAYOUT: "NHD"})
    for name in ("prefill", "decode"):
        role(document, name)["backend_parameters"] = [*connector(enable_permute_local_kv=True), ON]
    assert codes(document, model=LLAMA) == DIFFER


@pytest.mark.parametrize(
    ("prefill", "decode", "model", "expected"),
    [
        ({NO_MLA: "1"}, {}, MLA, ["pairing_mla"]),
        ({NO_MLA: "1"}, {NO_MLA: "true"}, MLA, []),
        ({NO_MLA: "0"}, {}, MLA, []),
        ({NO_MLA: "1"}, {}, LLAMA, []),
        ({NO_MLA: "1"}, {}, None, UNVERIFIED),
    ],
)
def test_latents_are_kept_by_both_or_by_none(
    prefill: dict[str, str], decode: dict[str, str], model: Model, expected: list[str]
) -> None:
    assert codes(environments("vllm-nixl", prefill, decode), model=model) == expected


@pytest.mark.parametrize(
    ("version", "prefill", "decode", "model", "expected"),
    [
        ("0.27.1", "DS", "DS", RECURRENT, []),
        ("0.27.1", "SD", "DS", RECURRENT, ["pairing_ssm_layout"]),
        ("0.27.1", "SD", "SD", RECURRENT, ["pairing_ssm_layout"]),
        ("0.27.0", "SD", "DS", RECURRENT, UNVERIFIED),
        ("0.27.1", "DS", None, RECURRENT, UNVERIFIED),
        ("0.27.1", None, None, RECURRENT, UNVERIFIED),
        ("0.27.1", "SD", "DS", LLAMA, []),
        ("0.27.1", "SD", "DS", None, UNVERIFIED),
        ("0.27.1", None, None, None, []),
    ],
)
def test_recurrent_states_are_handed_over_as_ds(
    version: str, prefill: str | None, decode: str | None, model: Model, expected: list[str]
) -> None:
    sides = [{} if said is None else {SSM: said} for said in (prefill, decode)]
    found = codes(environments("vllm-nixl", *sides, backend_version=version), model=model)
    assert [code for code in found if code != "engine_version_below_recipe_floor"] == expected


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ("SD", "DS", ["pairing_ssm_layout"]),
        ("SD", "SD", UNVERIFIED),
        ("DS", "DS", []),
        ("SD", None, UNVERIFIED),
    ],
)
def test_of_other_connectors_only_that_recurrent_states_must_be_alike_is_known(
    prefill: str, decode: str | None, expected: list[str]
) -> None:
    sides = [{} if said is None else {SSM: said} for said in (prefill, decode)]
    assert codes(environments("vllm-mooncake", *sides), model=RECURRENT) == expected


@pytest.mark.parametrize(
    ("prefill", "decode", "flags", "model", "extra", "expected"),
    [
        ({CHUNKS: "1"}, {}, [ON], CHUNKED, {}, ["pairing_hybrid_kv_cache"]),
        ({CHUNKS: "1"}, {CHUNKS: "1"}, [ON], CHUNKED, {}, []),
        ({CHUNKS: "1"}, {}, [ON], LLAMA, {}, []),
        ({CHUNKS: "1"}, {}, [ON], None, {}, UNVERIFIED),
        ({CHUNKS: "1"}, {}, [], CHUNKED, {}, []),
        ({CHUNKS: "1"}, {}, [ON], CHUNKED, {"speculative_config": {"method": "mtp"}}, UNVERIFIED),
    ],
)
def test_local_attention_decides_about_the_hybrid_cache_manager(
    prefill: dict[str, str],
    decode: dict[str, str],
    flags: list[str],
    model: Model,
    extra: dict[str, Any],
    expected: list[str],
) -> None:
    document = environments("vllm-nixl", prefill, decode, backend_parameters=flags, **extra)
    assert codes(document, model=model) == expected


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (["--attention-backend=FLASHINFER"], ["--attention-backend=flashinfer"], []),
        (
            ["--attention-backend=FLASHINFER"],
            ["--attention-backend=FLASH_ATTN"],
            ["pairing_attention_backend"],
        ),
        (["--attention-backend=FLASHINFER"], [], UNVERIFIED),
        (["--attention-backend=MINE"], ["--attention-backend=FLASH_ATTN"], UNVERIFIED),
        (
            [
                "--attention-backend=FLASHINFER",
                *connector(kv_connector_extra_config={"enforce_handshake_compat": False}),
            ],
            ["--attention-backend=FLASH_ATTN"],
            UNVERIFIED,
        ),
    ],
)
def test_the_attention_backend(prefill: list[str], decode: list[str], expected: list[str]) -> None:
    assert codes(pair("vllm-nixl", prefill, decode)) == expected


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ({INVARIANT: "1"}, {}, UNVERIFIED),
        ({INVARIANT: "1"}, {INVARIANT: "true"}, []),
        ({INVARIANT: "0"}, {}, []),
    ],
)
def test_batch_invariance_chooses_an_attention_backend(
    prefill: dict[str, str], decode: dict[str, str], expected: list[str]
) -> None:
    assert codes(environments("vllm-nixl", prefill, decode)) == expected


def test_a_role_without_an_environment_has_the_groups_and_an_empty_one_replaces_it() -> None:
    inherited = group("vllm-nixl", env={LAYOUT: "NHD"}, decode={"env": {LAYOUT: "HND"}})
    (only,) = judge(inherited, model=LLAMA)
    assert (only.code, only.path) == ("pairing_kv_layout", f"roles.decode.env.{LAYOUT}")
    assert (only.values["prefill"], only.values["decode"]) == ("NHD", "HND")
    replaced = group("vllm-nixl", env={LAYOUT: "NHD"}, decode={"env": {}})
    assert codes(replaced, model=LLAMA) == UNVERIFIED
    assert codes(group("vllm-nixl", env={LAYOUT: "NHD"}), model=LLAMA) == []


@pytest.mark.parametrize(
    "document",
    [
        environments("sglang-nixl", {LAYOUT: "NHD"}, {LAYOUT: "HND"}),
        environments("custom", {LAYOUT: "NHD"}, {LAYOUT: "HND"}),
        environments("vllm-nixl", {"UCX_NET_DEVICES": "a", "VLLM_PORT": "1"}, {"UCX_NET_DEVICES": "b"}),
    ],
)
def test_other_engines_and_other_variables_are_not_compared(document: Document) -> None:
    assert codes(document, model=LLAMA) == []
