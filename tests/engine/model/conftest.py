"""Tiny models, written once per test session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import torch

from tests.support.tiny_models import write_tiny_llama, write_tiny_qwen3

WRITERS: Final[dict[str, Callable[[Path], Path]]] = {
    "llama": lambda directory: write_tiny_llama(directory),
    "llama-tied-llama3": lambda directory: write_tiny_llama(directory, 1, tied=True, rope="llama3"),
    "llama-biases-shards": lambda directory: write_tiny_llama(directory, 2, biases=True, shards=3),
    "llama-linear": lambda directory: write_tiny_llama(directory, 3, rope="linear"),
    "qwen3": lambda directory: write_tiny_qwen3(directory),
    "qwen3-untied-yarn": lambda directory: write_tiny_qwen3(directory, 1, tied=False, rope="yarn"),
}

TinyModel = Callable[[str], Path]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices are slower on several threads, most of all when another test run has the other cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The directory of one of ``WRITERS``; shared, so not to be changed."""
    root = tmp_path_factory.mktemp("tiny-models")

    def directory(name: str) -> Path:
        target = root / name
        return target if target.exists() else WRITERS[name](target)

    return directory
