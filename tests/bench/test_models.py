"""What the engine is compared by: bytes as they are in the files, and tokens as they were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from bench.models.ours import Ours
from bench.models.sizes import weight_bytes
from pdcore.engine.model.config import ModelConfig
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_as_they_are_stored(tmp_path: Path, tied: bool) -> None:
    directory = write_tiny_llama(tmp_path, tied=tied)
    stored = load_file(directory / "model.safetensors")
    config = ModelConfig.from_directory(directory)
    every = sum(tensor.nbytes for tensor in stored.values())
    assert weight_bytes(config) == every
    unread = 0 if tied else stored["model.embed_tokens.weight"].nbytes
    ours = Ours(directory)
    kv = 2 * 3 * 4 * 16 * 4
    assert ours.step_bytes(5, 30) == every - unread + 5 * 30 * kv


def test_every_request_makes_its_tokens_in_steps_of_many(tmp_path: Path) -> None:
    ours = Ours(write_tiny_llama(tmp_path), max_batch=4)
    names = [ours.add(range(10 + number, 40 + number), 6) for number in range(4)]
    ours.until_first_tokens(names)
    assert ours.finish() == 4 * 5
    assert not ours.busy
