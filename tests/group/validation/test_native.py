"""Native engines are judged by the rules that routers pick by, and by what the engine itself would refuse."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.config.engine import ENGINE
from pdcore.group.validation.native import OWNED
from tests.group.specs import LLAMA, MLA, codes, group, judge, pair

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("prefill", "decode", "model", "expected"),
    [
        ([], [], LLAMA, []),
        (["--max-model-len=4096"], ["--max-model-len=2048"], LLAMA, ["pairing_context_length"]),
        (["--max-model-len=4096"], [], LLAMA, ["pairing_context_length"]),
        (["--max-model-len=131072"], [], LLAMA, []),
        (["--max-model-len=4096"], [], None, []),
        (["--dtype=bfloat16"], ["--dtype", "float32"], LLAMA, ["pairing_kv_dtype"]),
        (["--dtype=bfloat16"], [], LLAMA, ["pairing_kv_dtype"]),
        (["--dtype=float32"], [], LLAMA, []),
        (["--block-size=32"], ["--block_size=16"], LLAMA, ["pairing_block_size"]),
        (["--block-size=16"], [], LLAMA, []),
        (["--tp=4"], ["--tp=2"], LLAMA, []),
        (["--tp=2"], ["--tp=4"], LLAMA, []),
        (["--tp=8"], ["--tp=3"], LLAMA, ["tp_does_not_divide", "pairing_tp", "pairing_tp"]),
        (["--tp=8"], ["--tp=3"], MLA, ["tp_does_not_divide", "pairing_tp"]),
        (["--tp=3"], ["--tp=3"], LLAMA, [*["tp_does_not_divide"] * 2, *["pairing_tp"] * 2]),
        (["--tp=64"], ["--tp=64"], LLAMA, ["tp_does_not_divide"] * 2),
        (["--cp=2"], [], LLAMA, []),
        ([], ["--cp=2"], LLAMA, ["pairing_cp"]),
        (["--transfer-engine=shm"], ["--transfer-engine=tcp"], LLAMA, ["pairing_transfer_engine"]),
        (["--transfer-engine=shm"], [], LLAMA, []),
    ],
)
def test_a_pair_of_native_engines(
    prefill: list[str], decode: list[str], model: Any, expected: list[str]
) -> None:
    assert codes(pair("pdcore", prefill, decode), model=model) == expected


def test_a_difference_tells_both_values_and_its_place() -> None:
    document = group(
        "pdcore",
        backend_parameters=["--max-model-len=4096"],
        decode={"backend_parameters": ["--max-model-len=2048"]},
    )
    (only,) = judge(document, model=LLAMA)
    assert (only.code, only.path) == ("pairing_context_length", "roles.decode.backend_parameters")
    assert only.values == {"factor": "context_length", "prefill": 4096, "decode": 2048}
    assert "prefill has 4096, decode 2048" in only.message


def test_a_variable_counts_where_no_flag_says_otherwise() -> None:
    document = group("pdcore", decode={"env": {"PDCORE_BLOCK_SIZE": "32"}})
    (only,) = judge(document, model=LLAMA)
    assert (only.code, only.path) == ("pairing_block_size", "roles.decode.env")
    document["roles"][1]["backend_parameters"] = ["--block-size=16"]
    assert codes(document, model=LLAMA) == []


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--bloc-size=16"], "engine_flag_unknown"),
        (["--curve-secret=x"], "engine_flag_unknown"),
        (["--block-size=many"], "engine_flag_refused"),
        (["--block-size"], "engine_flag_refused"),
        (["--tp=2000"], "engine_flag_refused"),
        (["--port=80"], "engine_flag_owned"),
        (["--instance-id", "x"], "engine_flag_owned"),
        (["--nnodes=2"], "engine_flag_owned"),
        (["--kv-transfer-ifname=lo"], "engine_flag_owned"),
        (["--max-model-len=131073"], "context_too_long"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_before(flags: list[str], code: str) -> None:
    found = judge(group("pdcore", prefill={"backend_parameters": flags}), model=LLAMA)
    assert (found[0].code, found[0].path) == (code, "roles.prefill.backend_parameters")


def test_a_size_that_people_write_is_one_that_the_engine_reads() -> None:
    document = pair("pdcore", ["--max-model-len=64k"], ["--max-model-len=64000"])
    assert codes(document, model=LLAMA) == []
    assert codes(pair("pdcore", ["--max-model-len=64k"], ["--max-model-len=64K"]), model=LLAMA) == [
        "pairing_context_length"
    ]


def test_a_variable_cannot_spread_a_member_over_machines() -> None:
    found = judge(group("pdcore", prefill={"env": {"PDCORE_NNODES": "2", "PDCORE_LEADER": ""}}), model=LLAMA)
    told = [(one.code, one.path) for one in found if one.severity == "refused"]
    assert told == [("engine_flag_owned", "roles.prefill.env.PDCORE_NNODES")]


def test_the_settings_that_launchers_own_are_settings() -> None:
    assert OWNED - {"config"} <= {setting.name for setting in ENGINE}


@pytest.mark.parametrize(
    ("prefill", "decode", "code", "path", "remedy"),
    [
        (
            [],
            ["--cp=2"],
            "pairing_cp",
            "roles.decode.backend_parameters",
            "remove --cp from decode; only prefill can split prompts",
        ),
        (
            ["--tp=5"],
            [],
            "pairing_tp",
            "roles.prefill.backend_parameters",
            "write --tp as one of 1, 2, 4, 8, or as a multiple of 8",
        ),
        (
            ["--tp=4"],
            ["--tp=6"],
            "pairing_tp",
            "roles.decode.backend_parameters",
            "give both the same --tp, or sizes of which one divides the other",
        ),
        (
            ["--tp=64"],
            [],
            "tp_does_not_divide",
            "roles.prefill.backend_parameters",
            "write a --tp that divides 32 and 14336",
        ),
    ],
)
def test_a_remedy_is_one_that_helps(
    prefill: list[str], decode: list[str], code: str, path: str, remedy: str
) -> None:
    model = {**LLAMA, "intermediate_size": 14336}
    found = [one for one in judge(pair("pdcore", prefill, decode), model=model) if one.code == code]
    assert (path, remedy) in [(one.path, one.remedy) for one in found]
