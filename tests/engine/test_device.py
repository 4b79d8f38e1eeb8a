"""The asked device, or the real reason why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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


@pytest.mark.usefixtures("broken_plug_in")
def test_auto_falls_back_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert device.select("auto").kind == "cpu"
    assert "libhccl.so" in capsys.readouterr().out
