"""A rank's part of a model agrees with what the KV layout says it holds; sizes that do not divide are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pdcore.engine import device
from pdcore.engine.kv.layout import held_heads
from pdcore.engine.model.causal import CausalModel, Layer
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.layers import GatedMlp, GroupedAttention, Linear
from pdcore.engine.model.loader import load
from pdcore.engine.model.shard import WHOLE, Shard, shard_problems
from pdcore.errors import ConfigError
from tests.engine.model.conftest import TinyModel
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig.from_directory(write_tiny_llama(tmp_path_factory.mktemp("model")))


def test_one_rank_holds_the_whole_model(config: ModelConfig) -> None:
    assert WHOLE.sizes(config) == config
    assert shard_problems(config, 1) == ()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5))
def test_heads_are_those_of_the_kv_layout_and_of_their_queries(
    config: ModelConfig, kv_power: int, tp_power: int, groups: int
) -> None:
    kv_heads, tp_size = 1 << kv_power, 1 << tp_power
    heads = kv_heads * groups * tp_size
    config = replace(config, heads=heads, kv_heads=kv_heads, intermediate=tp_size * 3)
    assert shard_problems(config, tp_size) == ()
    entry = config.kv_layout(8, "float32").only_group.entries[0]
    for tp in range(tp_size):
        shard = Shard(tp=tp, tp_size=tp_size)
        own = shard.kv_heads(kv_heads)
        assert own == held_heads(entry, tp_size, tp)
        wanted = {head * kv_heads // heads for head in shard.share(heads)}
        assert wanted == set(own)


@pytest.mark.parametrize(
    ("tp_size", "fields"),
    [
        (3, ["num_attention_heads 8", "intermediate_size 256", "num_key_value_heads 4"]),
        (8, []),
        (16, ["num_attention_heads 8"]),
    ],
)
def test_sizes_that_do_not_divide_are_named_with_their_values(
    config: ModelConfig, tp_size: int, fields: list[str]
) -> None:
    problems = shard_problems(config, tp_size)
    assert len(problems) == len(fields)
    for problem, field in zip(problems, fields, strict=True):
        assert problem.startswith("--tp / PDCORE_TP: ")
        assert field in problem
        assert str(tp_size) in problem
        assert "\n" not in problem


def loaded(directory: Path, tp: int, tp_size: int) -> CausalModel:
    config = ModelConfig.from_directory(directory)
    return load(directory, config, device.select("cpu"), "float32", shard=Shard(tp=tp, tp_size=tp_size))


def test_such_a_model_is_not_loaded(tiny_model: TinyModel) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tiny_model("llama"), 0, 3)
    assert len(caught.value.problems) == 3


def attention_of(layer: Layer) -> GroupedAttention:
    assert isinstance(layer.attention, GroupedAttention)
    return layer.attention


def qkv_of(layer: Layer) -> Tensor:
    qkv = attention_of(layer).qkv
    assert isinstance(qkv, Linear)
    return qkv.weight


def summed_in(layer: Layer) -> tuple[Linear, Linear]:
    assert isinstance(layer.mlp, GatedMlp)
    out, down = attention_of(layer).out, layer.mlp.down
    assert isinstance(out, Linear)
    assert isinstance(down, Linear)
    return out, down


def test_shards_hold_every_row_and_column_once(tiny_model: TinyModel) -> None:
    directory = tiny_model("llama-biases-shards")
    whole, parts = loaded(directory, 0, 1), [loaded(directory, tp, 2) for tp in (0, 1)]
    for number, layer in enumerate(whole.layers):
        own = [part.layers[number] for part in parts]
        query, key, value = torch.split(qkv_of(layer), [128, 64, 64])
        halves = [torch.split(qkv_of(part), [64, 32, 32]) for part in own]
        for kind, rows in enumerate((query, key, value)):
            assert torch.equal(torch.cat([half[kind] for half in halves]), rows)
        for whole_one, first, second in zip(summed_in(layer), *map(summed_in, own), strict=True):
            assert torch.equal(torch.cat([first.weight, second.weight], dim=1), whole_one.weight)
            assert first.bias is not None
            assert whole_one.bias is not None
            assert torch.equal(first.bias, whole_one.bias)
            assert second.bias is None


def test_more_ranks_than_key_value_heads_hold_copies(tiny_model: TinyModel) -> None:
    first, second, third = (qkv_of(loaded(tiny_model("qwen3"), tp, 4).layers[0]) for tp in (0, 1, 2))
    keys = slice(2 * 32, None)
    assert torch.equal(first[keys], second[keys])
    assert not torch.equal(first[keys], third[keys])
