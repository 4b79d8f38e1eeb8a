"""``mooncake``: a library's engine, over TCP, RDMA or Ascend links. Only when asked for.

It listens on two ports of every interface and lets in whoever comes, so over TCP it belongs on a network of its own.
Memory is announced over a link of ours (``tcp_link``), on which bells ring and whose end tells decode that the peer is
gone; nothing is written over it.

Fence: the library looks at no seq, so a revoke proves nothing, and a write that it reported as failed may land later
(measured). What a dead peer sent is in decode's own sockets at most, and is read or given up within the library's
timeout: ``Lost`` comes that long after the link's end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdcore.clock import Clock, SystemClock
from pdcore.engine.transfer.engine import EngineCaps
from pdcore.engine.transfer.library_receiver import LibraryReceiver
from pdcore.engine.transfer.library_sender import LibrarySender
from pdcore.engine.transfer.memory import NOTHING, PAGE, Region
from pdcore.engine.transfer.mooncake_library import Engine, Library, load
from pdcore.engine.transfer.plan import Buffer
from pdcore.engine.transfer.tcp_sender import TcpSender

NAME: Final = "mooncake"
ASCEND_ALIGNMENT: Final = 2 << 20
"""What links between devices ask of addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeEngine:
    """See :class:`pdcore.engine.transfer.engine.TransferEngine`.

    ``protocol`` tcp, rdma or ascend; ``device`` is the library's own word for which of them (empty: its choice).
    ``timeout_s`` is the library's, at least 5. ``load`` makes the library's object.
    """

    bind_ip: str
    protocol: str = "tcp"
    device: str = ""
    secret: bytes = field(default=b"", repr=False)
    timeout_s: int = 5
    clock: Clock = field(default_factory=SystemClock)
    load: Callable[[str, int], Library] = load

    @property
    def name(self) -> str:
        """How compat and endpoints call it."""
        return NAME

    @property
    def caps(self) -> EngineCaps:
        """Nobody looks at what arrives; the bell comes over our own link."""
        alignment = ASCEND_ALIGNMENT if self.protocol == "ascend" else PAGE
        return EngineCaps(
            cross_host=True,
            can_revoke=False,
            requires_doorbell=True,
            alignment=alignment,
            reaches_devices=self.protocol != "tcp",
        )

    def receiver(self, region: Region) -> LibraryReceiver:
        """Decode's end."""
        return LibraryReceiver(region, name=NAME, engine=self._engine(), secret=self.secret, clock=self.clock)

    def sender(self, source: Buffer, runtime_dir: Path) -> LibrarySender:
        """Prefill's end."""
        control = TcpSender(
            NOTHING,
            name=NAME,
            bind_ip=self.bind_ip,
            secret=self.secret,
            timeout_s=float(self.timeout_s),
            clock=self.clock,
        )
        return LibrarySender(source, name=NAME, control=control, engine=self._engine(), clock=self.clock)

    def _engine(self) -> Engine:
        return Engine(self.bind_ip, self.protocol, self.device, self.timeout_s, self.load)
