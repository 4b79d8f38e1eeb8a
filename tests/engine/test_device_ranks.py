"""Ranks on a device, wired as their processes wire them: the CPU stands in for a device whose memory is not the host's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pdcore.engine.device import HOST, Device
from pdcore.engine.staged_side import StagedSide
from pdcore.engine.transfer.device_memory import ALIGNMENT
from tests.support.device_ranks import opened
from tests.support.family_models import write_family
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.integration

ELSEWHERE = Device("cuda", torch.device("cpu"))
PROMPT = [5, 81, 300, 7, 42, 9, 11, 250, 33, 8, 77, 190, 4, 61, 500, 23, 18, 99, 144, 3, 61]
MOST = 12


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pdx-") as path:
        yield Path(path)


def same_everywhere(directory: Path, runtime_dir: Path, engine: str) -> None:
    with opened(directory, HOST, runtime_dir, engine) as ranks:
        expected = ranks.alone(PROMPT, MOST)
    with opened(directory, ELSEWHERE, runtime_dir, engine) as ranks:
        alone, pair = ranks.alone(PROMPT, MOST), ranks.handed_off(PROMPT, MOST)
    assert (alone.tokens, pair.tokens) == (expected.tokens, expected.tokens)
    torch.testing.assert_close(pair.logits, expected.logits)


@pytest.mark.parametrize("engine", ["shm", "tcp"])
def test_a_pair_computes_what_one_rank_computes(tmp_path: Path, runtime_dir: Path, engine: str) -> None:
    same_everywhere(write_tiny_llama(tmp_path / "model"), runtime_dir, engine)


@pytest.mark.cluster
@pytest.mark.parametrize("family", ["gpt-oss", "deepseek-v3"])
def test_also_with_windows_and_with_latents(tmp_path: Path, runtime_dir: Path, family: str) -> None:
    same_everywhere(write_family(tmp_path / "model", family), runtime_dir, "auto")


@pytest.mark.parametrize("role", ["unified", "prefill", "decode"])
def test_the_pool_is_on_the_device_and_only_decode_wraps_its_side(
    tmp_path: Path, runtime_dir: Path, role: str
) -> None:
    with opened(write_tiny_llama(tmp_path / "model"), ELSEWHERE, runtime_dir) as ranks:
        rank = ranks.rank(role)
        assert isinstance(rank.role.memory, torch.Tensor)
        assert rank.role.memory.data_ptr() % ALIGNMENT == 0
        assert isinstance(rank.role.side, StagedSide) is (role == "decode")
        assert rank.pool.groups[0]._layers[0][0].rows.untyped_storage().data_ptr() == (
            rank.role.memory.untyped_storage().data_ptr()
        )


def test_on_the_host_nothing_is_staged(tmp_path: Path, runtime_dir: Path) -> None:
    with opened(write_tiny_llama(tmp_path / "model"), HOST, runtime_dir) as ranks:
        for role in ("unified", "prefill", "decode"):
            rank = ranks.rank(role)
            assert isinstance(rank.role.memory, memoryview)
            assert not isinstance(rank.role.side, StagedSide)
