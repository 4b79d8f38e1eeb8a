"""A forward pass gives the same logits however a prompt is cut and whoever shares the batch."""

from __future__ import annotations

import random

import pytest
import torch

from pdcore.engine.model.runner import Slice
from tests.engine.model.conftest import TinyModel
from tests.support.paged_generation import PagedModel

pytestmark = pytest.mark.unit

MODELS = ("llama-tied-llama3", "qwen3")


class Told:
    """What a pass told of itself, and what the pool's ``memory`` held then."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory
        self.told: list[tuple[str, bytes]] = []

    def stored(self) -> None:
        self.told.append(("stored", bytes(self.memory)))

    def layers_done(self) -> None:
        self.told.append(("layers done", bytes(self.memory)))


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    chosen = random.Random(seed)
    return tuple(chosen.randrange(512) for _ in range(count))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 8, 16])
def test_chunks_give_what_the_whole_prompt_gives(tiny_model: TinyModel, name: str, chunk: int) -> None:
    model, prompt = PagedModel(tiny_model(name)), tokens(37)
    whole = model.runner.forward([Slice(prompt, 0, model.table(37))], model.pool)
    table = model.table(37)
    for start in range(0, 37, chunk):
        parts = model.runner.forward([Slice(prompt[start : start + chunk], start, table)], model.pool)
    torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_mixed_batch_gives_what_each_sequence_gives_alone(tiny_model: TinyModel, name: str) -> None:
    model = PagedModel(tiny_model(name))
    lengths = (1, 30, 9, 17, 64, 2)
    news = (1, 5, 1, 17, 1, 1)
    alone, batch = [], []
    for seed, (length, new) in enumerate(zip(lengths, news, strict=True)):
        prompt, table = tokens(length, seed), model.table(length)
        alone.append(model.runner.forward([Slice(prompt, 0, model.table(length))], model.pool))
        if length > new:
            model.runner.forward([Slice(prompt[:-new], 0, table)], model.pool)
        batch.append(Slice(prompt[length - new :], length - new, table))
    torch.testing.assert_close(
        model.runner.forward(batch, model.pool), torch.cat(alone), atol=1e-4, rtol=1e-4
    )


def test_blocks_copied_elsewhere_continue_the_sequence(tiny_model: TinyModel) -> None:
    model, prompt = PagedModel(tiny_model("llama")), tokens(20)
    here, there = model.table(21), model.table(21)
    model.runner.forward([Slice(prompt, 0, here)], model.pool)
    size = model.pool.layout.block_bytes
    for source, target in zip(here[0], there[0], strict=True):
        model.memory[target * size : (target + 1) * size] = model.memory[source * size : (source + 1) * size]
    stay = model.runner.forward([Slice((5,), 20, here)], model.pool)
    torch.testing.assert_close(model.runner.forward([Slice((5,), 20, there)], model.pool), stay)


def test_logits_are_float32_in_bfloat16_models_too(tiny_model: TinyModel) -> None:
    whole = PagedModel(tiny_model("llama"))
    half = PagedModel(tiny_model("llama"), dtype="bfloat16")
    results = []
    for model in (whole, half):
        model.runner.forward([Slice(tokens(20), 0, table := model.table(24))], model.pool)
        results.append(model.runner.forward([Slice((3, 4), 20, table)], model.pool))
    assert results[1].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(results[0], results[1]).item() > 0.99


@pytest.mark.parametrize("batch", [[], [Slice((), 0, ((0,),))], [Slice((1,), 8, ((0,),))]])
def test_a_batch_that_makes_no_sense_is_refused(tiny_model: TinyModel, batch: list[Slice]) -> None:
    model = PagedModel(tiny_model("llama"), blocks=4)
    with pytest.raises(ValueError, match=r"at least one|do not fit"):
        model.runner.forward(batch, model.pool)


@pytest.mark.parametrize("chunk", [1, 16, 37])
def test_a_pass_says_when_all_its_keys_and_values_are_stored(tiny_model: TinyModel, chunk: int) -> None:
    model, prompt = PagedModel(tiny_model("qwen3")), tokens(37)
    table = model.table(37)
    for start in range(0, 37, chunk):
        before, told = bytes(model.memory), Told(model.memory)
        model.runner.forward([Slice(prompt[start : start + chunk], start, table)], model.pool, told)
        after = bytes(model.memory)
        assert told.told == [("stored", after), ("layers done", after)]
        assert after != before
