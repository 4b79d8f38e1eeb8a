"""A recipe's files: what sets what, what is known and unused, and each sentence of refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdcore.config.engine import ENGINE
from pdcore.config.recipe import RecipeSettings, check_pair, read_settings
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit

DOCUMENT: dict[str, Any] = {
    "model_config": {
        "model_name": "qwen3",
        "model_path": "/models/qwen3",
        "with_ckpt": True,
        "exe_mode": "eager",
        "enable_profiler": False,
        "force_eplb": False,
        "next_n": 0,
        "custom_params": {"enable_superkernel": False, "moe_chunk_max_len": 65536},
        "platform_version": "A3",
        "micro_batch_mode": 0,
    },
    "parallel_config": {
        "world_size": 32,
        "attn_tp_size": 4,
        "cp_size": 2,
        "pp_size": 1,
        "dense_tp_size": 4,
        "moe_tp_size": 4,
        "embed_tp_size": 4,
        "lmhead_tp_size": 4,
        "o_proj_tp_size": 4,
    },
    "scheduler_config": {
        "block_size": 128,
        "max_prefill_tokens": 8192,
        "max_new_tokens": 1,
        "batch_size": 16,
        "mem_fraction_static": 0.9,
        "num_reserved_decode_tokens": 32,
        "temperature": 1.0,
    },
    "data_config": {"input_truncated_len": 8192},
}


def document(**changes: Any) -> dict[str, Any]:
    """DOCUMENT with values at ``section__key``; None takes the key away."""
    made = {section: dict(content) for section, content in DOCUMENT.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        made[section][key] = value
        if value is None:
            del made[section][key]
    return made


def problems(given: object, role: str = "prefill") -> list[str]:
    """What is said of ``given``, without the name of the file in front of each."""
    with pytest.raises(ConfigError) as wrong:
        read_settings(given, "f.yaml", role)
    assert all(problem.startswith("f.yaml: ") and "\n" not in problem for problem in wrong.value.problems)
    return [problem.removeprefix("f.yaml: ") for problem in wrong.value.problems]


def test_what_is_used_becomes_our_settings() -> None:
    assert read_settings(DOCUMENT, "f.yaml", "prefill").values == {
        "model_name": "qwen3",
        "model": "/models/qwen3",
        "tp": "4",
        "cp": "2",
        "dp": "4",
        "block_size": "128",
        "max_prefill_tokens": "8192",
        "num_reserved_decode_tokens": "32",
        "max_batch": "4",
    }


def test_what_is_known_and_not_used_is_listed_once() -> None:
    assert read_settings(DOCUMENT, "f.yaml", "prefill").ignored == (
        "model_config.with_ckpt",
        "model_config.exe_mode",
        "model_config.enable_profiler",
        "model_config.force_eplb",
        "model_config.next_n",
        "model_config.custom_params",
        "model_config.platform_version",
        "model_config.micro_batch_mode",
        "scheduler_config.max_new_tokens",
        "scheduler_config.mem_fraction_static",
        "scheduler_config.temperature",
        "data_config.input_truncated_len",
    )


def test_what_a_file_does_not_say_is_left_to_the_other_sources() -> None:
    assert read_settings(
        {"model_config": {"model_path": "m"}, "data_config": None}, "f", "decode"
    ).values == {"model": "m"}


def test_the_copies_that_older_scripts_read_at_the_top_are_accepted_when_they_agree() -> None:
    assert (
        read_settings({**DOCUMENT, "model_name": "qwen3", "world_size": 32}, "f", "prefill").values["dp"]
        == "4"
    )
    assert problems({**DOCUMENT, "world_size": 16}) == [
        "world_size is 16 at the top, while parallel_config.world_size is 32"
    ]


REFUSALS: list[tuple[object, str, list[str]]] = [
    (
        document(model_config__model_pth="m"),
        "prefill",
        ["unknown key 'model_pth' in model_config; did you mean 'model_path'?"],
    ),
    (
        document(scheduler_config__blok_size=16),
        "prefill",
        ["unknown key 'blok_size' in scheduler_config; did you mean 'block_size'?"],
    ),
    (
        document(parallel_config__attn_dp_size=4),
        "prefill",
        ["unknown key 'attn_dp_size' in parallel_config; did you mean 'attn_tp_size'?"],
    ),
    (document(data_config__zzz=4), "prefill", ["unknown key 'zzz' in data_config"]),
    (
        {**DOCUMENT, "modle_config": {}},
        "prefill",
        ["unknown key 'modle_config'; did you mean 'model_config'?"],
    ),
    (dict([*DOCUMENT.items(), (7, {})]), "prefill", ["unknown key 7"]),
    (
        {**DOCUMENT, "disagg_config": {"local_ip": "p0"}},
        "prefill",
        ["disagg_config is not read from a file: give role, addresses and ports as flags"],
    ),
    (
        document(parallel_config__world_size=12),
        "prefill",
        ["parallel_config.world_size: 12 does not divide by attn_tp_size 4 * cp_size 2"],
    ),
    (document(parallel_config__world_size=None), "prefill", ["parallel_config.world_size is missing"]),
    (
        document(parallel_config__world_size=0),
        "prefill",
        ["parallel_config.world_size: '0' must be a whole number from 1 to 1048576"],
    ),
    (
        document(parallel_config__world_size=True),
        "prefill",
        ["parallel_config.world_size: 'True' must be a whole number from 1 to 1048576"],
    ),
    (document(parallel_config__pp_size=2), "prefill", ["parallel_config.pp_size: 2 must be 1"]),
    (DOCUMENT, "decode", ["parallel_config.cp_size: 2 must be 1 for decode"]),
    (
        document(parallel_config__moe_tp_size=1),
        "prefill",
        ["parallel_config.moe_tp_size: 1 is not attn_tp_size 4, and one size holds for all layers"],
    ),
    (
        document(scheduler_config__batch_size=10),
        "prefill",
        ["scheduler_config.batch_size: 10 does not divide by the 4 data parallel ranks"],
    ),
    (
        document(scheduler_config__block_size=0),
        "prefill",
        ["scheduler_config.block_size: '0' must be a whole number from 1 to 1024"],
    ),
    (
        document(scheduler_config__block_size=[16]),
        "prefill",
        ["scheduler_config.block_size: [16] must be one value"],
    ),
    (document(model_config__model_name=""), "prefill", ["model_config.model_name: is empty"]),
    ({"model_config": ["m"]}, "prefill", ["model_config must hold keys, not ['m']"]),
    (
        "text",
        "prefill",
        ["must hold the sections model_config, parallel_config, scheduler_config, data_config"],
    ),
    (
        None,
        "prefill",
        ["must hold the sections model_config, parallel_config, scheduler_config, data_config"],
    ),
]


@pytest.mark.parametrize(("given", "role", "sentences"), REFUSALS, ids=[row[2][0][:50] for row in REFUSALS])
def test_what_cannot_work_is_a_sentence_with_field_and_value(
    given: object, role: str, sentences: list[str]
) -> None:
    assert problems(given, role) == sentences


def test_everything_that_is_wrong_is_said_at_once() -> None:
    given = document(
        parallel_config__pp_size=2, scheduler_config__block_size="x", model_config__nodel_name="y"
    )
    assert len(problems(given, "decode")) == 4


def test_what_a_problem_shows_of_a_value_is_short() -> None:
    assert all(len(problem) < 200 for problem in problems({"model_config": "x" * 50_000}))


@pytest.mark.parametrize(
    ("prefill", "decode"), [({"block_size": "128"}, {"block_size": "64"}), ({}, {"block_size": "64"})]
)
def test_block_sizes_that_never_pair_are_refused_with_both(
    prefill: dict[str, str], decode: dict[str, str]
) -> None:
    with pytest.raises(
        ConfigError, match=r"dir: scheduler_config.block_size is \d+ in prefill.yaml and 64 in decode"
    ):
        check_pair("dir", *(RecipeSettings(values=one, ignored=()) for one in (prefill, decode)))


PARSE = {setting.name: setting.parse for setting in ENGINE}
keys = st.text(max_size=12) | st.sampled_from(
    [key for content in DOCUMENT.values() for key in content]
    + list(DOCUMENT)
    + ["disagg_config", "world_size"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(keys, scalars, max_size=3)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(document=st.dictionaries(keys, st.dictionaries(keys, values, max_size=6) | values, max_size=5))
def test_any_document_is_settings_that_parse_or_sentences(document: object) -> None:
    read, sentences = read_or_refused(document)
    assert all("\n" not in sentence for sentence in sentences)
    for name, value in read.items():
        PARSE[name](value)
    assert read.get("cp", "1") == "1"


def read_or_refused(document: object) -> tuple[Mapping[str, str], tuple[str, ...]]:
    try:
        return read_settings(document, "f.yaml", "decode").values, ()
    except ConfigError as refused:
        return {}, refused.problems
