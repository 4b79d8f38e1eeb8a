"""Which device an engine computes on: the one place that names device kinds or loads their plug-ins."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog
import torch

from pdcore.errors import ConfigError

Kind = Literal["cpu", "npu", "cuda"]

_COLLECTIVES: Final[Mapping[Kind, str]] = {"cpu": "gloo", "npu": "hccl", "cuda": "nccl"}
_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that was found to work. ``torch_device`` is what tensors are placed on."""

    kind: Kind
    torch_device: torch.device

    def __str__(self) -> str:
        return str(self.torch_device)

    @property
    def is_host(self) -> bool:
        """Whether its memory is the process's own, which every transfer engine reaches."""
        return self.kind == "cpu"

    @property
    def collectives(self) -> str:
        """The backend of torch.distributed for its tensors."""
        return _COLLECTIVES[self.kind]


HOST: Final = Device("cpu", torch.device("cpu"))


def select(device: str, index: int = 0) -> Device:
    """The device for ``device`` (auto, npu, cuda or cpu), the ``index``-th of its kind where there are several.

    One that was asked for and does not work is a ConfigError with the real reason. ``auto`` takes an NPU, else a CUDA
    device, else the CPU; it says so when there is something that fails, and is a ConfigError when there are devices but
    too few of them: the ranks of an instance compute on one kind.
    """
    for kind, why_not in _ACCELERATORS.items():
        if device not in ("auto", kind):
            continue
        why = why_not(index)
        if why is None:
            return _set(kind, index)
        if device == kind or 0 < _count(kind) <= index:
            raise ConfigError(f"--device / PDCORE_DEVICE: {kind} cannot be used: {why}")
        if _is_expected(kind):
            _log.warning("device fallback", instead_of=kind, reason=why)
    return HOST


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
    return _too_few(npu.device_count(), index, "ASCEND_RT_VISIBLE_DEVICES")


def why_no_cuda(index: int = 0) -> str | None:
    """What keeps this process from computing on the ``index``-th CUDA device, None when nothing does."""
    library: Any = torch
    if not library.backends.cuda.is_built():
        return f"this torch ({torch.__version__}) is built without CUDA"
    try:
        library.cuda.init()
        few = _too_few(library.cuda.device_count(), index, "CUDA_VISIBLE_DEVICES")
        if few is None:  # a device that this torch has no kernels for is there, and computes nothing
            torch.ones(1, device=torch.device("cuda", index)).add(1).item()
    except RuntimeError as wrong:
        return str(wrong).splitlines()[0]
    return few


_ACCELERATORS: Final[Mapping[Kind, Callable[[int], str | None]]] = {"npu": why_no_npu, "cuda": why_no_cuda}


def _too_few(count: int, index: int, variable: str) -> str | None:
    if index < count:
        return None
    return f"there are {count} devices (see {variable}), and this rank's is number {index}"


def _set(kind: Kind, index: int) -> Device:
    """Before any library looks which device is this process's."""
    torch.get_device_module(kind).set_device(index)
    return Device(kind, torch.device(kind, index))


def _count(kind: Kind) -> int:
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None else 0


def _is_expected(kind: Kind) -> bool:
    """Whether somebody would wonder: a plug-in was installed for it, or a device is there."""
    return importlib.util.find_spec("torch_npu") is not None if kind == "npu" else _count(kind) > 0
