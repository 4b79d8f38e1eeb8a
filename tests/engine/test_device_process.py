"""A device that does not work, asked for at a real process: one line with the import's own reason, exit status 2.

Nothing is connected before, so it makes no difference that no store answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdcore.engine.device import why_no_cuda
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.cluster

NO_STORE = "etcd://127.0.0.1:1"
REASON = "libhccl.so: cannot open shared object file"


@pytest.fixture
def plug_in(tmp_path: Path) -> Path:
    """torch_npu as it is installed where CANN is missing: torch itself cannot be imported beside it."""
    packages = tmp_path / "packages"
    about = packages / "torch_npu-2.13.0.dist-info"
    about.mkdir(parents=True)
    (packages / "torch_npu.py").write_text(f"raise ImportError({REASON!r})\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    return packages


def run(*command: str, packages: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{packages}:{os.environ.get('PYTHONPATH', '')}"}
    environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    return subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_an_engine_ends_with_the_reason_of_its_plug_in(tmp_path: Path, plug_in: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    ended = run(
        *("-m", "pdcore.engine", "--role", "unified", "--store", NO_STORE, "--model", str(model)),
        *("--port", "0", "--bootstrap-port", "0", "--device", "npu"),
        packages=plug_in,
    )
    assert ended.returncode == 2, ended.stderr
    (last,) = ended.stderr.strip().splitlines()
    assert "--device / PDCORE_DEVICE: npu cannot be used" in last
    assert f"importing torch_npu failed: {REASON}" in last


def test_cuda_that_does_not_work_ends_an_engine_as_an_npu_does(tmp_path: Path) -> None:
    if why_no_cuda() is None:
        pytest.skip("CUDA works here")
    model = write_tiny_llama(tmp_path / "model")
    ended = run(
        *("-m", "pdcore.engine", "--role", "unified", "--store", NO_STORE, "--model", str(model)),
        *("--port", "0", "--bootstrap-port", "0", "--device", "cuda"),
        packages=tmp_path,
    )
    assert ended.returncode == 2, ended.stderr
    (last,) = ended.stderr.strip().splitlines()
    assert f"--device / PDCORE_DEVICE: cuda cannot be used: {why_no_cuda()}" in last


def test_the_doctor_tells_the_same_reason_where_torch_itself_breaks(plug_in: Path) -> None:
    assert run("-c", "import torch", packages=plug_in).returncode == 1, "the trap is set"
    told = run("-m", "pdcore", "doctor", "ascend", packages=plug_in)
    assert told.returncode == 1
    assert f"importing torch_npu failed: {REASON}" in told.stdout
