"""``shm``: decode's memory is a memfd that the prefill rank maps and copies into. One machine, one user.

Link: decode connects to the prefill rank's unix socket (SOCK_SEQPACKET, so records stay whole) and offers token, size
and the memfd in one record. Afterwards prefill sends eight bytes, a seq, per finished slot, or 0 when one is about to
be finished, and decode sends nothing.

Fence: decode reads end-of-file on that socket only when the peer cannot write any more. A living prefill rank unmaps
before it closes; of a dying process the kernel closes files only after every thread left its address space. A stopped
process is neither, so SIGSTOP is no fence.

Order: on x86 plain stores become visible in program order, so a slot that decode sees implies the KV before it.
Elsewhere it does not, and a slot counts only after the doorbell, whose system calls are barriers on both sides.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from pdcore.engine.transfer.engine import EngineCaps
from pdcore.engine.transfer.memory import Region, on_host
from pdcore.engine.transfer.plan import Buffer
from pdcore.engine.transfer.shm_link import NAME
from pdcore.engine.transfer.shm_receiver import ShmReceiver
from pdcore.engine.transfer.shm_sender import ShmSender


def stores_are_ordered() -> bool:
    """Whether this machine makes plain stores visible in program order."""
    return platform.machine() in ("x86_64", "AMD64", "i686")


@dataclass(frozen=True, slots=True)
class ShmEngine:
    """See :class:`pdcore.engine.transfer.engine.TransferEngine`. ``doorbell`` None asks the machine."""

    doorbell: bool | None = None

    @property
    def name(self) -> str:
        """How compat and endpoints call it."""
        return NAME

    @property
    def caps(self) -> EngineCaps:
        """One machine; nobody looks at a plain store, so nothing but the fence stops one."""
        doorbell = not stores_are_ordered() if self.doorbell is None else self.doorbell
        return EngineCaps(cross_host=False, can_revoke=False, requires_doorbell=doorbell)

    def receiver(self, region: Region) -> ShmReceiver:
        """Decode's end."""
        return ShmReceiver(region)

    def sender(self, source: Buffer, runtime_dir: Path) -> ShmSender:
        """Prefill's end."""
        return ShmSender(on_host(source), runtime_dir)
