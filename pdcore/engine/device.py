"""Which device an engine computes on: the one place that names device kinds or loads their plug-ins."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Final, Literal

import structlog
import torch

from pdcore.errors import ConfigError

Kind = Literal["cpu", "npu"]

_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that was found to work. ``torch_device`` is what tensors are placed on."""

    kind: Kind
    torch_device: torch.device

    def __str__(self) -> str:
        return str(self.torch_device)


def select(device: str, index: int = 0) -> Device:
    """The device for ``device`` (auto, cpu or npu), the ``index``-th of its kind where there are several.

    ``npu`` that does not work is a ConfigError with the real reason; ``auto`` then takes the CPU, and says so when a
    plug-in is installed that fails.
    """
    if device == "cpu":
        return Device("cpu", torch.device("cpu"))
    why_not = why_no_npu(index)
    if why_not is None:
        torch.get_device_module("npu").set_device(
            index
        )  # before any library looks which device is this process's
        return Device("npu", torch.device("npu", index))
    if device == "npu":
        raise ConfigError(f"--device / PDCORE_DEVICE: npu cannot be used: {why_not}")
    if importlib.util.find_spec("torch_npu") is not None:
        _log.warning("device fallback", device="cpu", reason=why_not)
    return Device("cpu", torch.device("cpu"))


def why_no_npu(index: int = 0) -> str | None:
    """What keeps this process from computing on the ``index``-th NPU, None when nothing does."""
    if importlib.util.find_spec("torch_npu") is None:
        return "the package torch_npu is not installed (extra: pdcore[ascend])"
    try:
        importlib.import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as wrong:
        return f"importing torch_npu failed: {wrong}"
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        return "torch_npu finds no device"
    count = npu.device_count()
    if index >= count:
        return f"there are {count} devices (see ASCEND_RT_VISIBLE_DEVICES), and this rank's is number {index}"
    return None
