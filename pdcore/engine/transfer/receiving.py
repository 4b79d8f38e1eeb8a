"""Decode's session: owns the KV memory, asks prefill ranks for rooms, and says what became of them.

A thin shell round :class:`ReceiveLedger`. The rank's single-threaded loop calls ``open`` and ``abort`` as requests come
and go, ``poll`` once per turn, and sleeps on ``pollables`` until ``next_wake``. Nothing blocks.

Per prefill rank there is one link: the engine's (memory offered, fence) and a DEALER socket to the address the
keyspace names. Handshakes wait until the peer answered hello, so what was never asked needs no draining.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

import zmq

from pdcore.clock import Clock
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import channel, wire
from pdcore.engine.transfer.engine import Linked, Lost, Rung, TransferEngine
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.orders import PrefillPeer
from pdcore.engine.transfer.plan import RegionShape, block_problem
from pdcore.engine.transfer.receive_ledger import (
    Arrived,
    Drained,
    Effect,
    Entry,
    HandoffFailed,
    ReceiveEvent,
    ReceiveLedger,
    Tell,
)
from pdcore.engine.transfer.slot import SlotArray
from pdcore.errors import PeerGone, TransferTimeout
from pdcore.telemetry import logger

_MESSAGES_PER_POLL: Final = 64

__all__ = ["Arrived", "Drained", "HandoffFailed", "ReceiveEvent", "ReceiveStatistics", "ReceivingSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveStatistics:
    """``rooms`` wait for their KV; ``quarantined`` seqs are over but their memory may still be written."""

    slots_total: int
    slots_used: int
    rooms: int
    quarantined: int
    in_doubt: int
    blocks_held: int
    peers: int
    malformed: int


@dataclass(slots=True, kw_only=True)
class _Peer:
    """One prefill rank. ``token`` and ``socket`` are set once the engine's link exists."""

    identity: PrefillPeer
    outbox: channel.Outbox
    token: bytes = b""
    socket: zmq.Socket[bytes] | None = None
    welcomed: bool = False
    retry_at: float = -math.inf
    malformed: int = 0

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """Which start of which rank."""
        return _key(self.identity)

    @property
    def name(self) -> str:
        """For people."""
        p = self.identity
        return f"prefill {p.instance_id} rank {p.dp}.{p.cp}.{p.tp} (incarnation {p.incarnation})"


class ReceivingSession:
    """See the module. ``resend_s`` is the first interval at which an unanswered message is repeated."""

    def __init__(
        self,
        *,
        layout: KvLayout,
        blocks_total: int,
        slots_total: int,
        identity: wire.RankIdentity,
        engine: TransferEngine,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Clock,
        resend_s: float = 0.2,
        peer_share: float = 0.25,
        total_share: float = 0.5,
    ) -> None:
        self._shape = RegionShape(layout, (blocks_total,), slots_total)
        self._identity = identity
        self._engine = engine
        self._context = context
        self._clock = clock
        self._resend_s = resend_s
        self._region = Region(self._shape.nbytes)
        self._receiver = engine.receiver(self._region)
        self._ledger = ReceiveLedger(
            slots_total=slots_total,
            blocks_total=blocks_total,
            resend_s=resend_s,
            peer_share=peer_share,
            total_share=total_share,
        )
        self._peers: dict[tuple[str, str, int, int, int], _Peer] = {}
        self._slot_of: dict[int, int] = {}
        self._pending: list[ReceiveEvent] = []
        self._malformed = 0
        self._log = logger(__name__)

    def __enter__(self) -> Self:
        self._region.__enter__()
        self._receiver.__enter__()
        self._slots = SlotArray(self._region.memory[self._shape.slots_offset :])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in list(self._peers.values()):
            self._close(peer)
        self._receiver.__exit__(kind, error, trace)
        self._region.__exit__(kind, error, trace)

    @property
    def region_buffer(self) -> memoryview:
        """The KV blocks: what the pool is built over."""
        return self._region.memory[: self._shape.pool_bytes]

    def pollables(self) -> list[int | zmq.Socket[bytes]]:
        """What the loop sleeps on; ask again after every ``open`` and ``poll``."""
        sockets = [peer.socket for peer in self._peers.values() if peer.socket is not None]
        return [*self._receiver.pollables(), *sockets]

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable; the past means now."""
        if self._pending:
            return -math.inf
        retries = (peer.retry_at for peer in self._peers.values() if not peer.welcomed)
        return min(self._ledger.next_wake(), min(retries, default=math.inf))

    def can_open(self, peer: PrefillPeer, blocks: int) -> bool:
        """Whether ``open`` of so many blocks would be taken now; else the request waits or gets a 503."""
        return self._ledger.can_open(_key(peer), blocks)

    def open(
        self, *, room: int, peer: PrefillPeer, blocks: tuple[int, ...], prompt_len: int, deadline: float
    ) -> int:
        """Ask ``peer`` for ``room``: its KV goes to the first blocks of ``blocks`` that the prompt needs.

        Returns the seq. ``ApiError`` ``peer_backlog`` when no slot is free or a memory cap is reached; ``ValueError``
        for blocks that cannot hold the prompt. That the peer cannot be reached comes as an event.
        """
        needed = self._shape.layout.blocks_for(prompt_len)
        problem = block_problem(blocks, self._shape.blocks[0])
        if problem is not None or len(blocks) < needed or not 1 <= room <= wire.MAX_ROOM:
            raise ValueError(problem or f"room {room}: {len(blocks)} blocks for {prompt_len} tokens")
        now = self._clock.now()
        known = self._peers.get(_key(peer)) or _Peer(
            identity=peer, outbox=channel.Outbox(2 * self._shape.slots + 1)
        )
        entry, effects = self._ledger.open(
            room=room,
            peer=known.key,
            peer_name=known.name,
            blocks=blocks,
            prompt_len=prompt_len,
            deadline=deadline,
            now=now,
        )
        self._slots.watch(entry.slot, seq=entry.seq, room=room)
        self._slot_of[entry.seq] = entry.slot
        self._peers.setdefault(known.key, known)
        self._apply(effects + self._reach(known, now))
        self._flush(known)
        return entry.seq

    def abort(self, seq: int, now: float) -> None:
        """The request is over for us; its memory is free at ``Drained``. Ended seqs are ignored."""
        if seq in self._ledger:
            peer = self._peers.get(_peer_key(self._ledger[seq]))
            self._apply(self._ledger.abort(seq, "cancelled", now))
            if peer is not None:
                self._flush(peer)

    def poll(self, now: float) -> list[ReceiveEvent]:
        """Everything that happened since the last call. Reads the slot array once."""
        lost = self._hear_links()
        self._apply(self._read_slots(lost))
        for peer in lost:
            self._close(peer)
            self._apply(self._ledger.lost(peer.key, "is gone"))
        for peer in list(self._peers.values()):
            self._apply(self._hear_control(peer, now))
            self._apply(self._reach(peer, now))
        self._apply(self._ledger.tick(now))
        for peer in self._peers.values():
            self._flush(peer)
        events, self._pending = self._pending, []
        return events

    def statistics(self) -> ReceiveStatistics:
        """Counts of this instant; all but the totals, ``peers`` and ``malformed`` are 0 when nothing is open."""
        entries = list(self._ledger)
        return ReceiveStatistics(
            slots_total=self._shape.slots,
            slots_used=self._ledger.slots_used,
            rooms=sum(not entry.request_over for entry in entries),
            quarantined=sum(entry.request_over for entry in entries),
            in_doubt=sum(entry.in_doubt for entry in entries),
            blocks_held=sum(len(entry.blocks) for entry in entries),
            peers=len(self._peers),
            malformed=self._malformed,
        )

    def __repr__(self) -> str:
        s = self.statistics()
        return (
            f"<ReceivingSession {s.rooms} rooms, {s.quarantined} quarantined ({s.in_doubt} in doubt), "
            f"{s.slots_used}/{s.slots_total} slots, {s.peers} peers>"
        )

    # Hearing

    def _hear_links(self) -> list[_Peer]:
        by_token = {peer.token: peer for peer in self._peers.values()}
        lost: list[_Peer] = []
        for news in self._receiver.drain():
            peer = by_token.get(news.token)
            match news:
                case Rung(seq=seq) if peer is not None:
                    self._ledger.rang(peer.key, seq)
                case Linked() if peer is not None:
                    peer.retry_at = -math.inf  # the hello it did not understand yet, again
                case Lost() if peer is not None:
                    lost.append(peer)
        return lost

    def _read_slots(self, lost: Iterable[_Peer]) -> list[Effect]:
        """Also after a loss: what a peer finished before its death counts, and its death made it visible."""
        fenced = {peer.key for peer in lost}
        effects: list[Effect] = []
        for _index, slot in self._slots.look():
            entry = self._ledger[slot.seq]
            if not self._engine.caps.requires_doorbell or entry.rung or entry.peer in fenced:
                effects += self._ledger.wrote(slot.seq, slot)
        return effects

    def _hear_control(self, peer: _Peer, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if peer.socket is None:
            return effects
        for frames in channel.receive(peer.socket, _MESSAGES_PER_POLL):
            try:
                message = wire.read_to_decode(frames[0] if len(frames) == 1 else b"")
            except wire.MalformedFrame as error:
                self._count_malformed(peer, error)
                continue
            if message.token == peer.token and self._peers.get(peer.key) is peer:
                effects += self._take(peer, message, now)
        return effects

    def _take(self, peer: _Peer, message: wire.ToDecode, now: float) -> list[Effect]:
        match message:
            case wire.Welcome():
                if peer.welcomed:
                    return []
                peer.welcomed = True
                return self._ledger.linked(peer.key, now)
            case wire.Refused(message=why):
                if peer.welcomed:
                    return []
                self._close(peer)
                return self._ledger.lost(peer.key, f"refused: {why}")
            case wire.Accepted(seq=seq):
                return self._ledger.accepted(peer.key, seq, now)
            case wire.Failed() as f:
                return self._ledger.failed(
                    peer.key, f.seq, f.code, f.message, drained=f.drained, in_doubt=f.in_doubt, now=now
                )
            case wire.Drained(seq=seq, in_doubt=in_doubt):
                return self._ledger.drained(peer.key, seq, in_doubt=in_doubt)

    def _count_malformed(self, peer: _Peer, error: wire.MalformedFrame) -> None:
        self._malformed += 1
        peer.malformed += 1
        if peer.malformed == 1:
            self._log.warning("malformed control message", peer=peer.name, error=str(error))

    # Reaching

    def _reach(self, peer: _Peer, now: float) -> list[Effect]:
        """Connect, then say hello until it is answered."""
        if peer.welcomed or now < peer.retry_at or peer.key not in self._peers:
            return []
        peer.retry_at = now + self._resend_s
        if peer.socket is None:
            try:
                self._connect(peer)
            except TransferTimeout:
                return []
            except PeerGone as error:
                self._close(peer)
                return self._ledger.lost(peer.key, f"cannot be reached: {error}")
        peer.outbox.put("hello", wire.encode(self._hello(peer)))
        return []

    def _connect(self, peer: _Peer) -> None:
        token = secrets.token_bytes(wire.TOKEN_BYTES)
        self._receiver.connect(peer.identity.transfer, token)
        peer.token = token
        peer.socket = channel.open_socket(self._context, zmq.DEALER)
        channel.connect(peer.socket, peer.identity.rank_ip, peer.identity.rank_port)

    def _hello(self, peer: _Peer) -> wire.Hello:
        return wire.Hello(
            token=peer.token,
            version=wire.WIRE_VERSION,
            decode=self._identity,
            expected_incarnation=peer.identity.incarnation,
            layout=self._shape.layout.fingerprint(),
            blocks=self._shape.blocks[0],
            slots=self._shape.slots,
        )

    def _close(self, peer: _Peer) -> None:
        del self._peers[peer.key]
        if peer.token:
            self._receiver.disconnect(peer.token)
        if peer.socket is not None:
            peer.socket.close(linger=0)

    # Doing

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self._tell(effect)
                case Arrived(seq=seq) | Drained(seq=seq):
                    self._slots.forget(self._slot_of.pop(seq))
                    self._pending.append(effect)
                case HandoffFailed():
                    self._pending.append(effect)

    def _tell(self, tell: Tell) -> None:
        if tell.seq not in self._ledger:
            return  # a later message of the same poll has already concluded it
        entry = self._ledger[tell.seq]
        peer = self._peers[_peer_key(entry)]
        peer.outbox.put((tell.what, tell.seq), wire.encode(self._message(tell, entry, peer)))

    def _message(self, tell: Tell, entry: Entry, peer: _Peer) -> wire.ToPrefill:
        if tell.what == "abort":
            return wire.Abort(token=peer.token, seq=entry.seq, room=entry.room, code=entry.abort_code)
        if tell.what == "query":
            return wire.Query(token=peer.token, seq=entry.seq)
        self._receiver.allow(peer.token, entry.seq)
        remaining_s = max(0.0, entry.deadline - self._clock.now())
        needed = self._shape.layout.blocks_for(entry.prompt_len)
        return wire.Handshake(
            token=peer.token,
            seq=entry.seq,
            room=entry.room,
            slot=entry.slot,
            groups=(entry.blocks[:needed],),
            prompt_len=entry.prompt_len,
            remaining_ms=min(int(remaining_s * 1000), 86_400_000),
        )

    def _flush(self, peer: _Peer) -> None:
        socket = peer.socket
        if socket is not None:
            peer.outbox.flush(partial(channel.send, socket))


_Key = tuple[str, str, int, int, int]


def _key(peer: PrefillPeer) -> _Key:
    return (peer.instance_id, peer.incarnation, peer.dp, peer.cp, peer.tp)


def _peer_key(entry: Entry) -> _Key:
    key = entry.peer
    assert isinstance(key, tuple)
    return key
