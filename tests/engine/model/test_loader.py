"""Weights are loaded as the config describes them, or the file or tensor that is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pdcore.engine import device
from pdcore.engine.model.causal import CausalModel, Layer
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.layers import GroupedAttention, Linear
from pdcore.engine.model.loader import load
from pdcore.errors import ConfigError
from tests.support.tiny_models import write_tiny_llama, write_tiny_qwen3

pytestmark = pytest.mark.unit

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def loaded(directory: Path, dtype: str = "float32") -> CausalModel:
    return load(directory, ModelConfig.from_directory(directory), device.select("cpu"), dtype)


def qkv_of(layer: Layer) -> Linear:
    assert isinstance(layer.attention, GroupedAttention)
    assert isinstance(layer.attention.qkv, Linear)
    return layer.attention.qkv


def problem(directory: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(directory)
    (sentence,) = caught.value.problems
    assert "\n" not in sentence
    return sentence


def change(directory: Path, **tensors: Tensor | None) -> None:
    """Replace (or, with None, remove) tensors; ``__`` stands for a dot."""
    weights = load_file(directory / WHOLE)
    for name, tensor in tensors.items():
        weights.pop(name.replace("__", "."), None)
        if tensor is not None:
            weights[name.replace("__", ".")] = tensor
    save_file(weights, directory / WHOLE)


def test_tied_embeddings_share_memory(tmp_path: Path) -> None:
    model = loaded(write_tiny_qwen3(tmp_path))
    assert isinstance(model.head, Linear)
    assert model.head.weight is model.embedding


def test_a_head_stored_beside_tied_embeddings_is_not_needed(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, tied=True)
    change(tmp_path, lm_head__weight=torch.zeros(512, 128))
    model = loaded(tmp_path)
    assert isinstance(model.head, Linear)
    assert model.head.weight is model.embedding


def test_weights_take_the_asked_dtype(tmp_path: Path) -> None:
    model = loaded(write_tiny_llama(tmp_path), "bfloat16")
    assert {model.dtype, qkv_of(model.layers[0]).weight.dtype, model.final_norm.weight.dtype} == {
        torch.bfloat16
    }
    assert model.frequency.dtype == torch.float32


def test_shards_hold_the_same_model(tmp_path: Path) -> None:
    whole, parts = (
        loaded(write_tiny_llama(tmp_path / str(shards), biases=True, shards=shards)) for shards in (1, 4)
    )
    assert isinstance(whole.head, Linear)
    assert isinstance(parts.head, Linear)
    assert torch.equal(whole.head.weight, parts.head.weight)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        assert torch.equal(qkv_of(one).weight, qkv_of(other).weight)
        mine, theirs = qkv_of(one).bias, qkv_of(other).bias
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)


def test_progress_counts_layers(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    seen: list[tuple[int, int]] = []
    load(
        tmp_path,
        ModelConfig.from_directory(tmp_path),
        device.select("cpu"),
        "float32",
        lambda *at: seen.append(at),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_no_weights_at_all(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / WHOLE).rename(tmp_path / "pytorch_model.bin")
    assert "neither model.safetensors nor" in problem(tmp_path)
    assert "unpickling runs code" in problem(tmp_path)


@pytest.mark.parametrize("left", [0, 4, 1000, -1])
def test_truncated_weights(tmp_path: Path, left: int) -> None:
    path = write_tiny_llama(tmp_path) / WHOLE
    path.write_bytes(path.read_bytes()[:left])
    assert "model.safetensors is truncated" in problem(tmp_path)


def test_a_missing_shard(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert f"model-00002-of-00003.safetensors is missing, but {INDEX} names it" in problem(tmp_path)


def test_a_shard_that_lacks_what_the_index_places_in_it(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, shards=2)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.layers.9.mlp.up_proj.weight"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert "tensor model.layers.9.mlp.up_proj.weight is missing" in problem(tmp_path)


@pytest.mark.parametrize("places", [None, [], {"lm_head.weight": 3}, {"lm_head.weight": "../x.safetensors"}])
def test_a_senseless_index(tmp_path: Path, places: object) -> None:
    write_tiny_llama(tmp_path, shards=2)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    assert INDEX in problem(tmp_path)


def test_a_missing_tensor(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    change(tmp_path, model__layers__1__mlp__up_proj__weight=None)
    assert "tensor model.layers.1.mlp.up_proj.weight is missing" in problem(tmp_path)


def test_a_tensor_of_the_wrong_shape(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    change(tmp_path, model__norm__weight=torch.zeros(64))
    assert "tensor model.norm.weight has shape [64], the config says [128]" in problem(tmp_path)


def test_a_tensor_of_whole_numbers(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    change(tmp_path, model__norm__weight=torch.zeros(128, dtype=torch.int8))
    assert "tensor model.norm.weight has dtype torch.int8" in problem(tmp_path)


def test_a_tensor_that_has_no_place(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    change(tmp_path, model__layers__0__self_attn__q_proj__bias=torch.zeros(128))
    assert "tensor model.layers.0.self_attn.q_proj.bias has no place" in problem(tmp_path)


def test_stored_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    change(tmp_path, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    loaded(tmp_path)
