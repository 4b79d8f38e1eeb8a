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
