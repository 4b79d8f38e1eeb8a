"""The connector that a model's config asks for."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.group.flags import Flags
from pdcore.group.model_config import ModelConfig
from pdcore.group.modes.ascend_connector import connector_for, layout_of

pytestmark = pytest.mark.unit

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 28,
}
DEEPSEEK_V3 = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        (QWEN3, "standard"),
        (DEEPSEEK_V3, "standard"),
        ({"model_type": "glm", "layer_types": ["full_attention", "sliding_attention"]}, "standard"),
        ({"text_config": QWEN3}, "standard"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "hybrid"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid"),
        ({"hybrid_override_pattern": "-*-*"}, "standard"),
        ({"mamba_d_state": 128}, "hybrid"),
        ({"linear_num_key_heads": 16}, "hybrid"),
        ({"compress_ratios": [0, 0, 4]}, "hybrid"),
        ({"compress_ratios": [0, 0]}, "standard"),
        ({"compress_ratios": 4}, "hybrid"),
        ({"model_type": "deepseek_v4"}, "hybrid"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "hybrid"),
        ({"text_config": {"mamba_d_state": 128}}, "hybrid"),
        ({"llm_config": {"text_config": {"compress_ratios": [4]}}}, "hybrid"),
        ({"language_config": {"model_type": "deepseek_v4"}}, "hybrid"),
        ({"thinker_config": {"layer_types": ["mamba"]}}, "hybrid"),
        ({"text_config": QWEN3, "mamba_d_state": 128}, "hybrid"),
        (None, "hybrid"),
    ],
)
def test_the_layout_is_what_the_config_says(fields: dict[str, Any] | None, layout: str) -> None:
    config = None if fields is None else ModelConfig(fields)
    assert layout_of(config, Flags.of(())) == layout


@pytest.mark.parametrize(
    ("fields", "overrides", "layout"),
    [
        (QWEN3, '{"compress_ratios": [4]}', "hybrid"),
        (QWEN3, '{"rope_theta": 1}', "standard"),
        ({"text_config": {"mamba_d_state": 16}}, '{"text_config": {"mamba_d_state": 0}}', "standard"),
        (QWEN3, "not json", "hybrid"),
        (QWEN3, "[1]", "hybrid"),
        (None, '{"model_type": "qwen3"}', "hybrid"),
    ],
)
def test_prefills_overrides_count_and_prove_nothing_alone(
    fields: dict[str, Any] | None, overrides: str, layout: str
) -> None:
    config = None if fields is None else ModelConfig(fields)
    assert layout_of(config, Flags.of(["--hf_overrides", overrides])) == layout


def test_each_layout_has_its_connector() -> None:
    assert connector_for(ModelConfig(QWEN3), Flags.of(())) == "MooncakeConnectorV1"
    assert connector_for(None, Flags.of(())) == "MooncakeHybridConnector"
