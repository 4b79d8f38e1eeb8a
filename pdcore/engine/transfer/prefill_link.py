"""Decode's end of one pair: the engine's link to a prefill rank, and a DEALER socket to the address the keyspace names.

Connecting never blocks; hello is repeated, ever more slowly, until it is answered.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import zmq

from pdcore.engine.transfer import channel, wire
from pdcore.engine.transfer.engine import Receiver
from pdcore.engine.transfer.liveness import Liveness
from pdcore.engine.transfer.orders import PrefillPeer
from pdcore.errors import TransferTimeout

_MESSAGES_PER_POLL: Final = 64
_HELLO_CAP_S: Final = 2.0


class PeerKey(NamedTuple):
    """Which start of which rank."""

    instance_id: str
    incarnation: str
    dp: int
    cp: int
    tp: int


def key_of(peer: PrefillPeer) -> PeerKey:
    """How a peer is named in the ledger."""
    return PeerKey(peer.instance_id, peer.incarnation, peer.dp, peer.cp, peer.tp)


@dataclass(slots=True, kw_only=True)
class PrefillLink:
    """``token`` and ``socket`` are set once the engine's link exists; ``probe`` is its probe slot, if one was free."""

    identity: PrefillPeer
    outbox: channel.Outbox
    liveness: Liveness
    probe: int | None = None
    token: bytes = b""
    socket: zmq.Socket[bytes] | None = None
    welcomed: bool = False
    hello_at: float = -math.inf
    hello_s: float = 0.2
    key: PeerKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = key_of(self.identity)

    @property
    def place(self) -> str:
        """Which rank of which instance, whatever its incarnation."""
        p = self.identity
        return f"{p.instance_id} rank {p.dp}.{p.cp}.{p.tp}"

    @property
    def name(self) -> str:
        """For people."""
        return f"prefill {self.place} (incarnation {self.identity.incarnation})"

    def reach(self, receiver: Receiver, context: zmq.Context[zmq.Socket[bytes]], now: float) -> bool:
        """Connect if that has not been done; whether hello is to be said now. ``PeerGone`` when nobody can be there."""
        if self.welcomed or now < self.hello_at:
            return False
        self.hello_at = now + self.hello_s
        self.hello_s = min(self.hello_s * 2, _HELLO_CAP_S)
        if self.socket is None:
            try:
                self._connect(receiver, context)
            except TransferTimeout:
                return False
        return True

    def _connect(self, receiver: Receiver, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        token = secrets.token_bytes(wire.TOKEN_BYTES)
        receiver.connect(self.identity.transfer, token)
        self.token = token
        self.socket = channel.open_socket(context, zmq.DEALER)
        channel.connect(self.socket, self.identity.rank_ip, self.identity.rank_port)

    def close(self, receiver: Receiver) -> None:
        """Nothing was ever asked over this link, or it is lost."""
        if self.token:
            receiver.disconnect(self.token)
        if self.socket is not None:
            self.socket.close(linger=0)

    def put(self, key: object, message: wire.ToPrefill, now: float) -> None:
        """Queue a message that the peer must answer."""
        self.outbox.put(key, wire.encode(message))
        self.liveness.asked(now)

    def flush(self) -> None:
        """Send what can go."""
        if self.socket is not None and len(self.outbox):
            self.outbox.flush(partial(channel.send, self.socket))

    def receive(self) -> list[list[bytes]]:
        """Frames that came, a few at most."""
        return [] if self.socket is None else channel.receive(self.socket, _MESSAGES_PER_POLL)
