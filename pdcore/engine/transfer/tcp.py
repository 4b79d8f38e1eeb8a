"""``tcp``: decode's own thread reads KV from a socket straight into its region. Any number of machines.

Link: decode connects to the address in the prefill rank's record; see ``tcp_link`` for what is proven there. KV is not
encrypted: give it a network of its own.

Fence: only decode's thread writes its region. It looks at every frame's seq, so ``revoke`` proves what no other engine
can, and a link it has closed is the end of everything that came over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pdcore.clock import Clock, SystemClock
from pdcore.engine.transfer.engine import EngineCaps
from pdcore.engine.transfer.memory import Region, on_host
from pdcore.engine.transfer.plan import Buffer
from pdcore.engine.transfer.tcp_link import NAME
from pdcore.engine.transfer.tcp_receiver import TcpReceiver
from pdcore.engine.transfer.tcp_sender import TcpSender


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpEngine:
    """See :class:`pdcore.engine.transfer.engine.TransferEngine`.

    ``bind_ip`` is where a prefill rank listens and what it advertises. ``timeout_s`` is what a write may take beside
    the time for its bytes.
    """

    bind_ip: str
    secret: bytes = field(default=b"", repr=False)
    timeout_s: float = 5.0
    clock: Clock = field(default_factory=SystemClock)

    @property
    def name(self) -> str:
        """How compat and endpoints call it."""
        return NAME

    @property
    def caps(self) -> EngineCaps:
        """Everything. The bell is rung by our own thread, and makes what it read visible to the loop's."""
        return EngineCaps(cross_host=True, can_revoke=True, requires_doorbell=True)

    def receiver(self, region: Region) -> TcpReceiver:
        """Decode's end."""
        return TcpReceiver(region, name=NAME, secret=self.secret, clock=self.clock)

    def sender(self, source: Buffer, runtime_dir: Path) -> TcpSender:
        """Prefill's end."""
        return TcpSender(
            on_host(source),
            name=NAME,
            bind_ip=self.bind_ip,
            secret=self.secret,
            timeout_s=self.timeout_s,
            clock=self.clock,
        )
