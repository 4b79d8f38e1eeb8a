"""A model directory is understood or refused with one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.directory import Fields
from pdcore.errors import ConfigError
from tests.engine.model.conftest import TinyModel
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.unit


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def edit(directory: Path, changes: dict[str, object], name: str = "config.json") -> None:
    path = directory / name
    document = json.loads(path.read_text())
    path.write_text(
        json.dumps({key: value for key, value in {**document, **changes}.items() if value is not ...})
    )


def problem(directory: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_directory(directory)
    (sentence,) = caught.value.problems
    assert "\n" not in sentence
    assert sentence.startswith(f"--model / PDCORE_MODEL: {directory}: ")
    return sentence


def test_a_llama_is_read(tiny_model: TinyModel) -> None:
    config = ModelConfig.from_directory(tiny_model("llama-biases-shards"))
    assert (config.family, config.layers, config.heads, config.kv_heads, config.head_dim) == (
        "llama",
        3,
        8,
        4,
        16,
    )
    assert config.attention_bias
    assert config.mlp_bias
    assert not config.qk_norm
    assert config.context_length == 2048
    assert config.eos_token_ids == (0, 2)


def test_a_qwen3_has_heads_wider_than_its_share_of_the_hidden_size(tiny_model: TinyModel) -> None:
    config = ModelConfig.from_directory(tiny_model("qwen3"))
    assert config.qk_norm
    assert config.tied_embeddings
    assert config.head_dim * config.heads == 2 * config.hidden


def test_the_kv_layout_follows_the_dtype(directory: Path) -> None:
    config = ModelConfig.from_directory(directory)
    whole, half = config.kv_layout(16, "float32"), config.kv_layout(16, "bfloat16")
    assert whole.block_bytes == 3 * 2 * 16 * 4 * 16 * 4
    assert half.block_bytes * 2 == whole.block_bytes
    assert half.dense_shape().dtype_name == "bfloat16"


def test_both_spellings_of_the_rotary_embedding_mean_the_same(directory: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    edit(directory, dict(rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **scaling}))
    newer = ModelConfig.from_directory(directory)
    edit(directory, dict(rope_parameters=..., rope_theta=5e5, rope_scaling=scaling))
    assert ModelConfig.from_directory(directory) == newer
    assert newer.rope.kind == "yarn"
    assert newer.rope.original_context == 512


def test_end_of_text_comes_from_the_generation_config_and_the_tokenizer(directory: Path) -> None:
    edit(directory, dict(eos_token_id=7), "generation_config.json")
    assert ModelConfig.from_directory(directory).eos_token_ids == (2, 7)


def test_end_of_text_falls_back_to_the_config(directory: Path) -> None:
    (directory / "generation_config.json").unlink()
    edit(directory, dict(eos_token=...), "tokenizer_config.json")
    edit(directory, dict(eos_token_id=[9, 8]))
    assert ModelConfig.from_directory(directory).eos_token_ids == (8, 9)


def test_a_missing_directory(tmp_path: Path) -> None:
    assert problem(tmp_path / "nowhere").endswith("there is no such directory")


def test_a_file_instead_of_a_directory(directory: Path) -> None:
    assert "is a file" in problem(directory / "config.json")


def test_a_directory_without_config(directory: Path) -> None:
    (directory / "config.json").unlink()
    assert problem(directory).endswith("config.json is missing")


def test_a_truncated_config(directory: Path) -> None:
    path = directory / "config.json"
    path.write_bytes(path.read_bytes()[:100])
    assert "config.json is not valid JSON" in problem(directory)


def test_a_config_that_is_no_object(directory: Path) -> None:
    (directory / "config.json").write_text("[]")
    assert "holds list" in problem(directory)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is not supported"),
        ({"architectures": ...}, "names no architecture"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": "512"}, "vocab_size is '512'"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ({"num_key_value_heads": 3}, "8 heads cannot share 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer type 'sliding_attention'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rotary embedding 'longrope' is not supported"),
        ({"rope_parameters": 3}, "not an object"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}},
            "contradictory",
        ),
        ({"vocab_size": 2}, "end-of-text token 2 is outside the vocabulary"),
    ],
)
def test_what_cannot_be_served_is_named(directory: Path, changes: dict[str, object], named: str) -> None:
    edit(directory, changes)
    assert named in problem(directory)


@pytest.mark.parametrize("read", [lambda f: f.integer("x"), lambda f: f.number("x"), lambda f: f.flag("x")])
@pytest.mark.parametrize("value", ["1", [], {}, float("nan")])
def test_fields_of_a_wrong_type_are_refused(read: Callable[[Fields], object], value: object) -> None:
    with pytest.raises(ConfigError, match=r"c\.json: x is"):
        read(Fields(Path("/m"), "c.json", {"x": value}))


DEEPSEEK: dict[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}


def test_a_latent_is_the_same_on_every_rank_and_one_head(directory: Path) -> None:
    edit(directory, DEEPSEEK)
    config = ModelConfig.from_directory(directory)
    assert (config.attention, config.kv_heads, config.head_dim, config.rotated_dim) == ("mla", 1, 12, 4)
    layout = config.kv_layout(8, "float32")
    assert layout.shard(2, 1) == layout
    assert layout.block_bytes == 3 * 8 * (16 + 4) * 4
    assert [config.is_sparse(layer) for layer in range(3)] == [False, True, True]


def test_layers_with_windows_are_a_group_of_their_own(directory: Path) -> None:
    changes = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 32}
    edit(directory, changes | {"max_window_layers": 1})
    full, window = ModelConfig.from_directory(directory).kv_layout(8, "float32").groups
    assert (full.key, full.window, {entry.layer for entry in full.entries}) == ("full", None, {0})
    assert (window.key, window.window, {entry.layer for entry in window.entries}) == ("window", 32, {1, 2})
    edit(directory, {"max_window_layers": 0})
    (alone,) = ModelConfig.from_directory(directory).kv_layout(8, "float32").groups
    assert (alone.key, alone.window) == ("kv", 32)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kv_lora_rank": "many"}, "kv_lora_rank is 'many'"),
        ({"qk_rope_head_dim": 5}, "head_dim 5 is odd"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is set, but only 1"),
        ({"topk_method": "greedy"}, "experts chosen by greedy of sigmoid scores are not supported"),
        ({"scoring_func": "softmax"}, "experts chosen by noaux_tc of softmax scores"),
        ({"n_group": 3}, "8 experts cannot be chosen from 2 of 3 groups"),
        ({"topk_group": 5}, "cannot be chosen from 5 of 4 groups"),
        ({"num_experts_per_tok": 9}, "9 experts per token, but there are 8"),
        (
            {"architectures": ["DeepseekV2ForCausalLM"], "norm_topk_prob": True},
            "norm_topk_prob is set, which is not supported in DeepSeek-V2",
        ),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["linear_attention"]}, "'linear_attention'"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]}, "names 1 of 3 layers"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": 3}, "mlp_only_layers is 3"),
        (
            {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}},
            "quantised weights",
        ),
    ],
)
def test_what_a_family_cannot_serve_is_named(directory: Path, changes: dict[str, object], named: str) -> None:
    edit(directory, DEEPSEEK | changes)
    assert named in problem(directory)
