"""``memfabric``: Ascend's own engine, over SDMA within a supernode or RDMA between devices. Only when asked for.

Memory is announced over a link of ours, as with ``mooncake``, and the fence is the same: the end of that link and the
time after which the library has given everything up.
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
from pdcore.engine.transfer.memfabric_library import TIMEOUT_S, Engine, Package, Side, Terms, load
from pdcore.engine.transfer.memory import NOTHING, Region
from pdcore.engine.transfer.plan import Buffer
from pdcore.engine.transfer.tcp_sender import TcpSender

NAME: Final = "memfabric"
LINK_TIMEOUT_S: Final = 5.0
ALIGNMENT: Final = 2 << 20
"""What links between devices ask of addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemfabricEngine:
    """See :class:`pdcore.engine.transfer.engine.TransferEngine`. ``load`` finds the package.

    ``timeout_s`` after the end of a link nothing of it lands any more.
    """

    terms: Terms
    secret: bytes = field(default=b"", repr=False)
    clock: Clock = field(default_factory=SystemClock)
    load: Callable[[], Package] = load
    timeout_s: float = TIMEOUT_S

    @property
    def name(self) -> str:
        """How compat and endpoints call it."""
        return NAME

    @property
    def caps(self) -> EngineCaps:
        """Nobody looks at what arrives; the bell comes over our own link."""
        return EngineCaps(
            cross_host=True,
            can_revoke=False,
            requires_doorbell=True,
            alignment=ALIGNMENT,
            reaches_devices=True,
        )

    def receiver(self, region: Region) -> LibraryReceiver:
        """Decode's end."""
        engine = self._engine("Decode")
        return LibraryReceiver(region, name=NAME, engine=engine, secret=self.secret, clock=self.clock)

    def sender(self, source: Buffer, runtime_dir: Path) -> LibrarySender:
        """Prefill's end."""
        control = TcpSender(
            NOTHING,
            name=NAME,
            bind_ip=self.terms.host,
            secret=self.secret,
            timeout_s=LINK_TIMEOUT_S,
            clock=self.clock,
        )
        engine = self._engine("Prefill")
        return LibrarySender(source, name=NAME, control=control, engine=engine, clock=self.clock)

    def _engine(self, side: Side) -> Engine:
        return Engine(side, self.terms, self.load, self.timeout_s)
