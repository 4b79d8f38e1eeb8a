"""The asked device, or the real reason why not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pdcore.engine import device
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.fixture
def broken_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch_npu that is installed but whose driver is missing, as on a machine without the device."""
    (tmp_path / "torch_npu.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)


def test_the_cpu_is_always_there() -> None:
    found = device.select("cpu")
    assert (found.kind, str(found)) == ("cpu", "cpu")


def test_auto_takes_the_cpu_where_there_is_nothing_else() -> None:
    assert device.select("auto").kind == "cpu"


def test_npu_without_its_package_says_which_one() -> None:
    with pytest.raises(ConfigError, match=r"--device / PDCORE_DEVICE: npu .* torch_npu is not installed"):
        device.select("npu")


@pytest.mark.usefixtures("broken_plug_in")
def test_npu_whose_driver_is_missing_tells_what_the_import_said() -> None:
    with pytest.raises(ConfigError, match=r"libhccl\.so: cannot open"):
        device.select("npu")


@pytest.mark.parametrize(("count", "index", "works"), [(0, 0, False), (2, 1, True), (2, 2, False)])
def test_a_device_is_set_before_anything_else_if_there_are_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, index: int, works: bool
) -> None:
    (tmp_path / "torch_npu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    chosen: list[int] = []
    plug_in = SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, set_device=chosen.append
    )
    monkeypatch.setattr(torch, "npu", plug_in, raising=False)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: getattr(torch, kind))
    monkeypatch.setattr(torch, "device", lambda kind, number: f"{kind}:{number}")
    if works:
        assert str(device.select("npu", index)) == f"npu:{index}"
        assert chosen == [index]
        return
    with pytest.raises(ConfigError, match=r"finds no device|ASCEND_RT_VISIBLE_DEVICES"):
        device.select("npu", index)
    assert chosen == []


@pytest.mark.usefixtures("broken_plug_in")
def test_auto_falls_back_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.select("auto").kind == "cpu"
    assert "libhccl.so" in capsys.readouterr().out


class Cuda:
    """A torch with CUDA and ``count`` devices; ``says`` is what its driver answers instead."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, count: int, says: str | None = None, *, computes: bool = True
    ) -> None:
        self.chosen: list[int] = []
        self._says, self._computes, self._ones = says, computes, torch.ones
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
        monkeypatch.setattr(torch.cuda, "init", self._init)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", self.chosen.append)
        monkeypatch.setattr(torch, "ones", self._compute)

    def _init(self) -> None:
        if self._says is not None:
            raise RuntimeError(self._says)

    def _compute(self, count: int, device: torch.device) -> torch.Tensor:
        if not self._computes:
            raise RuntimeError("CUDA error: no kernel image is available\nCompile with TORCH_USE_CUDA_DSA")
        return self._ones(count)


def test_cuda_that_this_torch_does_not_know_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(ConfigError, match=r"--device / PDCORE_DEVICE: cuda .* is built without CUDA$"):
        device.select("cuda")


@pytest.mark.parametrize("asked", ["cuda", "auto"])
def test_a_rank_takes_the_cuda_device_of_its_number(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    cuda = Cuda(monkeypatch, 2)
    found = device.select(asked, 1)
    assert (found.kind, str(found), cuda.chosen) == ("cuda", "cuda:1", [1])
    assert (found.is_host, found.collectives) == (False, "nccl")


@pytest.mark.parametrize("asked", ["cuda", "auto"])
def test_too_few_devices_never_leave_one_rank_on_the_cpu(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    cuda = Cuda(monkeypatch, 2)
    with pytest.raises(ConfigError, match=r"there are 2 devices \(see CUDA_VISIBLE_DEVICES\).* number 2$"):
        device.select(asked, 2)
    assert cuda.chosen == []


@pytest.mark.parametrize(
    ("count", "says", "computes", "reason"),
    [
        (
            0,
            "Found no NVIDIA driver on your system.\nPlease check",
            True,
            "Found no NVIDIA driver on your system.",
        ),
        (1, None, False, "CUDA error: no kernel image is available"),
        (0, None, True, "there are 0 devices"),
    ],
)
def test_what_keeps_cuda_from_computing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    says: str | None,
    computes: bool,
    reason: str,
) -> None:
    cuda = Cuda(monkeypatch, count, says, computes=computes)
    with pytest.raises(ConfigError) as refused:
        device.select("cuda")
    assert f"cuda cannot be used: {reason}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (device.select("auto"), cuda.chosen) == (device.HOST, [])
    assert (reason in capsys.readouterr().out) is (count > 0), (
        "only where there is one, somebody would wonder"
    )


def test_an_npu_comes_before_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch, 1)
    (tmp_path / "torch_npu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    plug_in = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, set_device=lambda index: None
    )
    monkeypatch.setattr(torch, "npu", plug_in, raising=False)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: getattr(torch, kind))
    monkeypatch.setattr(torch, "device", lambda kind, number: f"{kind}:{number}")
    found = device.select("auto")
    assert (found.kind, found.collectives, cuda.chosen) == ("npu", "hccl", [])
