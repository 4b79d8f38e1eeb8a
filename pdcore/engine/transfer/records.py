"""What lies behind the pool in decode's region, as the loop reads it: slots, aux records, probe slots."""

from __future__ import annotations

from typing import Protocol

from pdcore.engine.transfer.aux_record import AUX_BYTES
from pdcore.engine.transfer.plan import RegionShape
from pdcore.engine.transfer.slot import SLOT_BYTES


class Records(Protocol):
    """Peers write them at any time; what is read is what was there at the last ``refresh``, or later."""

    @property
    def slots(self) -> memoryview:
        """All slots."""
        ...

    @property
    def probes(self) -> memoryview:
        """All probe slots."""
        ...

    def aux(self, index: int) -> bytes:
        """The aux record of slot ``index``."""
        ...

    def refresh(self, slots: int, probes: int) -> None:
        """Look at the first ``slots`` slots, their aux records, and the first ``probes`` probe slots: once per tick."""
        ...


class HostRecords:
    """Read where they lie: there is nothing to refresh."""

    def __init__(self, memory: memoryview, shape: RegionShape) -> None:
        slots, probes = shape.slots_offset, shape.nbytes - shape.probes * SLOT_BYTES
        self.slots = memory[slots : slots + shape.slots * SLOT_BYTES]
        self.probes = memory[probes : shape.nbytes]
        self._aux = memory[slots + shape.slots * SLOT_BYTES : probes]

    def aux(self, index: int) -> bytes:
        """See :class:`Records`."""
        return bytes(self._aux[index * AUX_BYTES : (index + 1) * AUX_BYTES])

    def refresh(self, slots: int, probes: int) -> None:
        """Nothing to do."""
