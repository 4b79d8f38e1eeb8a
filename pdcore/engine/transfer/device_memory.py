"""Memory of a device: where it begins, how it is written a little, and how records in it are read.

A device answers a copy of a few bytes no faster than one of many, so a tick of the loop reads everything that it looks
at with one copy to the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor

from pdcore.engine.transfer.aux_record import AUX_BYTES
from pdcore.engine.transfer.memory import NOTHING, PAGE, Region
from pdcore.engine.transfer.pages import PAGE_BYTES
from pdcore.engine.transfer.plan import Buffer, RegionShape
from pdcore.engine.transfer.slot import SLOT_BYTES
from pdcore.errors import ConfigError

ALIGNMENT: Final = 2 << 20
"""What links between devices ask of addresses, and the pages of their memory."""


def allocate(nbytes: int, device: torch.device) -> Tensor:
    """``nbytes`` zeroed bytes from a multiple of ``ALIGNMENT`` on, flat; ConfigError when the device has not so many."""
    try:
        whole = torch.zeros(nbytes + ALIGNMENT, dtype=torch.uint8, device=device)
    except RuntimeError as wrong:
        raise ConfigError(
            f"--kv-tokens / PDCORE_KV_TOKENS: {nbytes >> 20} MiB for the KV cache are too much for {device}: "
            f"{str(wrong).splitlines()[0]}"
        ) from wrong
    first = -whole.data_ptr() % ALIGNMENT
    return whole[first : first + nbytes]


def bound(device: torch.device) -> AbstractContextManager[object]:
    """Within it ``device`` is the calling thread's."""
    if device.type == "cpu":
        return nullcontext()
    module: Any = torch.get_device_module(device)
    chosen: AbstractContextManager[object] = module.device(device)
    return chosen


class DevicePages:
    """See :class:`pdcore.engine.transfer.pages.Pages`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new(self) -> Buffer:
        """A page, which begins where links may read from."""
        return allocate(PAGE_BYTES, self._device)

    def put(self, page: Buffer, data: bytes) -> None:
        """One copy to the device, waited for."""
        assert isinstance(page, Tensor), "a page of a device"
        with self.bound():
            page[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def bound(self) -> AbstractContextManager[object]:
        """See :func:`bound`."""
        return bound(self._device)

    def settle(self) -> None:
        """See :class:`pdcore.engine.transfer.pages.Pages`."""
        with self.bound():
            torch.get_device_module(self._device).synchronize()


class DeviceRecords:
    """See :class:`pdcore.engine.transfer.records.Records`: a copy of what is watched, made by ``refresh``."""

    def __init__(self, region: Tensor, shape: RegionShape) -> None:
        slots, probes = shape.slots_offset, shape.nbytes - shape.probes * SLOT_BYTES
        self._there = (
            region[slots : slots + shape.slots * SLOT_BYTES],
            region[slots + shape.slots * SLOT_BYTES : probes],
            region[probes : shape.nbytes],
        )
        here = [memoryview(bytearray(there.numel())) for there in self._there]
        self.slots, self._aux, self.probes = here

    def aux(self, index: int) -> bytes:
        """See :class:`pdcore.engine.transfer.records.Records`."""
        return bytes(self._aux[index * AUX_BYTES : (index + 1) * AUX_BYTES])

    def refresh(self, slots: int, probes: int) -> None:
        """One copy to the host, none when nothing is watched."""
        sizes = (slots * SLOT_BYTES, slots * AUX_BYTES, probes * SLOT_BYTES)
        watched = [there[:size] for there, size in zip(self._there, sizes, strict=True) if size]
        if not watched:
            return
        together = torch.cat(watched) if len(watched) > 1 else watched[0]
        copied = together.to("cpu", copy=True).numpy().data
        for here, size in zip((self.slots, self._aux, self.probes), sizes, strict=True):
            here[:size] = copied[:size]
            copied = copied[size:]


class DeviceRegion(Region):
    """A decode rank's registered memory on ``device``. Nothing of it is mapped, or reached by a frame of a link: what
    the host sees of it, ``memory``, is empty."""

    def __init__(self, device: torch.device, nbytes: int, alignment: int = PAGE) -> None:
        super().__init__(nbytes, alignment)
        self._device = device

    def __enter__(self) -> Self:
        self.memory = NOTHING
        self.tensor = allocate(self.nbytes, self._device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last tensor over it gives it back."""

    @property
    def address(self) -> int:
        """On the device."""
        return self.tensor.data_ptr()

    def pool(self, nbytes: int) -> Buffer:
        """See :class:`Region`."""
        return self.tensor[:nbytes]

    def records(self, shape: RegionShape) -> DeviceRecords:
        """See :class:`Region`."""
        return DeviceRecords(self.tensor, shape)
