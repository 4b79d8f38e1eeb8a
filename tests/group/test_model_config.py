"""A model's config says what matters for its KV cache, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdcore.group.model_config import MAX_BYTES, ModelConfig, NoModelConfig, is_path, read_model_config
from pdcore.topology.records import Json

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "seq_length": 2048}, 2048),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        (
            {
                "max_position_embeddings": 8192,
                "rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 4096},
            },
            16384,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"text_config": {"max_position_embeddings": 32768}, "max_position_embeddings": 1}, 32768),
        ({"max_position_embeddings": "many"}, None),
    ],
)
def test_the_context_that_engines_derive(fields: dict[str, Json], length: int | None) -> None:
    assert ModelConfig(fields).context_length == length


@pytest.mark.parametrize(
    ("fields", "recurrent"),
    [
        ({}, False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"layer_types": ["linear_attention", "full_attention"]}, True),
        ({"hybrid_override_pattern": "M-M*-"}, True),
        ({"hybrid_override_pattern": "-*-"}, False),
        ({"mamba_d_state": 16}, True),
        ({"text_config": {"linear_num_key_heads": 16}}, True),
    ],
)
def test_recurrent_layers_are_seen(fields: dict[str, Json], recurrent: bool) -> None:
    assert ModelConfig(fields).is_recurrent is recurrent


def test_experts_latents_windows_and_chunks_are_seen() -> None:
    assert ModelConfig({"n_routed_experts": 64}).is_moe
    assert not ModelConfig({"num_experts": 1}).is_moe
    assert ModelConfig({"kv_lora_rank": 512}).is_mla
    assert not ModelConfig({"kv_lora_rank": None}).is_mla
    assert ModelConfig({"sliding_window": 4096}).has_windows
    assert not ModelConfig({"sliding_window": 4096, "use_sliding_window": False}).has_windows
    assert ModelConfig({"attention_chunk_size": 8192}).has_chunks
    assert ModelConfig({"hidden_size": 64, "num_attention_heads": 4}).head_dim == 16


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "float32"}, None),
    ],
)
def test_auto_stands_for_the_models_dtype_where_no_engine_chooses(
    fields: dict[str, Json], dtype: str | None
) -> None:
    assert ModelConfig(fields).dtype == dtype


@pytest.mark.parametrize(
    ("content", "says"), [("{", "not JSON"), ("[]", "not a JSON object"), (None, "cannot be read")]
)
def test_what_is_no_config_is_said(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(NoModelConfig, match=says):
        read_model_config(tmp_path)


def test_a_config_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a": "x" * MAX_BYTES}))
    with pytest.raises(NoModelConfig, match="longer"):
        read_model_config(tmp_path)


def test_a_name_is_no_path() -> None:
    assert is_path("/models/x")
    assert is_path("./x")
    assert not is_path("Qwen/Qwen3-8B")
