"""Decode's session: owns the KV memory, asks prefill ranks for rooms, and says what became of them.

A thin shell round :class:`ReceiveLedger` and :class:`Gathering`, and a decode rank's side of hand-offs. The rank's
single-threaded loop calls ``obey`` as orders come, ``poll`` once per turn, and sleeps on ``pollables`` until
``next_wake``. Nothing blocks.

Per prefill rank there is one :class:`PrefillLink`. Handshakes wait until the peer answered hello, so what was never
asked needs no draining.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from typing import Literal

import zmq

from pdcore.clock import Clock
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import asking, aux_record, channel, wire
from pdcore.engine.transfer.asking import Asker
from pdcore.engine.transfer.blame import Blame
from pdcore.engine.transfer.engine import Announced, Linked, Lost, Revoked, Rung, TransferEngine
from pdcore.engine.transfer.entries import Allow, Delivered, Effect, Ended, Freed, Revoke, Tell
from pdcore.engine.transfer.failures import FailureCounts, RequestReason, given_up
from pdcore.engine.transfer.gathering import Gathering, GiveUp, Part
from pdcore.engine.transfer.gauges import SideGauges
from pdcore.engine.transfer.liveness import Liveness
from pdcore.engine.transfer.mapping import GroupSizes
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.opening import Parts
from pdcore.engine.transfer.orders import (
    AbortHandoff,
    DecodeEvent,
    Drained,
    HandoffFailed,
    Open,
    Order,
    PrefillPeer,
    TokenLogprobs,
)
from pdcore.engine.transfer.plan import Buffer, RegionShape
from pdcore.engine.transfer.prefill_link import PeerKey, PrefillLink, key_of
from pdcore.engine.transfer.probing import Probing
from pdcore.engine.transfer.receive_ledger import ReceiveLedger
from pdcore.engine.transfer.receive_statistics import ReceiveStatistics, statistics_of
from pdcore.engine.transfer.send_ledger import SILENCE_S
from pdcore.engine.transfer.slot import SlotArray
from pdcore.engine.transfer.wakefulness import Wakefulness
from pdcore.errors import ErrorCode, PeerGone
from pdcore.telemetry import logger


class ReceivingSession(Parts):
    """See the module. ``layout`` is the whole model's, ``blocks`` counts this rank's per KV group; ``resend_s`` is the
    first interval at which an unanswered message is repeated, ``region`` makes the memory of a size and alignment."""

    def __init__(
        self,
        *,
        layout: KvLayout,
        blocks: tuple[int, ...],
        slots: int,
        sizes: GroupSizes,
        identity: wire.RankIdentity,
        engine: TransferEngine,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Clock,
        probes: int = 256,
        resend_s: float = 0.2,
        silence_s: float = SILENCE_S,
        region: Callable[[int, int], Region] = Region,
        wakefulness: Wakefulness | None = None,
    ) -> None:
        self._shape = RegionShape(layout.shard(sizes.tp, identity.tp), blocks, slots, probes)
        self._asker = Asker(identity, sizes, layout, self._shape)
        self._engine = engine
        self._context = context
        self._clock = clock
        self._resend_s = resend_s
        self._silence_s = silence_s
        self._region = region(self._shape.nbytes, engine.caps.alignment)
        self._receiver = engine.receiver(self._region)
        self._ledger = ReceiveLedger(slots_total=slots, resend_s=resend_s)
        self._gathering = Gathering()
        self._links: dict[PeerKey, PrefillLink] = {}
        self._pending: list[DecodeEvent] = []
        self._wakefulness = wakefulness or Wakefulness()
        self._failures = FailureCounts()
        self._log = logger(__name__)
        self._blame = Blame(self._log, "malformed control message")

    def enter(self, stack: ExitStack) -> None:
        """The region, the engine's end over it, and what looks into it."""
        stack.enter_context(self._region)
        stack.enter_context(self._receiver)
        stack.callback(self._close_all)
        self._records = self._region.records(self._shape)
        self._slots = SlotArray(self._records.slots)
        self._probing = Probing(self._records.probes, self._receiver, self._ledger.next_seq, self._log)

    @property
    def region_buffer(self) -> Buffer:
        """The KV blocks: what the pool is built over."""
        return self._region.pool(self._shape.pool_bytes)

    def pollables(self) -> list[int | zmq.Socket[bytes]]:
        """What the loop sleeps on; ask again after every ``obey`` and ``poll``."""
        sockets = [link.socket for link in self._links.values() if link.socket is not None]
        return [*self._receiver.pollables(), *sockets]

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable; the past means now."""
        if self._pending or self._wakefulness.is_awake(self._clock.now()):
            return -math.inf
        wakes = [link.liveness.next_wake(welcomed=link.welcomed) for link in self._links.values()]
        hellos = [link.hello_at for link in self._links.values() if not link.welcomed]
        return min(self._ledger.next_wake(), *wakes, *hellos, math.inf)

    def obey(self, order: Order, now: float) -> None:
        """Do it; what comes of it is an event. ``ValueError`` for an ``Open`` that no leader may order: of no room, or
        of blocks that do not hold the prompt."""
        match order:
            case Open():
                self._open(order, now)
            case AbortHandoff(handoff=handoff, code=code):
                given = self._gathering.abort(handoff, code)
                if given:
                    self._failures.add(given_up(code), self._engine.name, "")
                self._gather(given, now)
            case _:
                raise TypeError(f"a decode rank was ordered to {type(order).__name__}")
        self._flush()

    def poll(self, now: float) -> list[DecodeEvent]:
        """Everything that happened since the last call. Reads each slot array once."""
        lost = self._hear_links(now)
        self._read_slots(lost, now)
        for link, why in lost.values():
            self._close(link)
            self._apply(self._ledger.lost(link.key, why), now)
        for link in list(self._links.values()):
            self._hear_control(link, now)
            self._reach(link, now)
        self._apply(self._ledger.tick(now), now)
        for link in list(self._links.values()):
            self._watch(link, now)
        self._flush()
        events, self._pending = self._pending, []
        return events

    def statistics(self) -> ReceiveStatistics:
        """Counts of this instant, and totals since the session opened."""
        return statistics_of(
            self._ledger,
            self._links.values(),
            handoffs=len(self._gathering),
            slots_total=self._shape.slots,
            malformed=self._blame.malformed,
            failures=self._failures.statistics(),
        )

    def gauges(self) -> SideGauges:
        """The same for whoever asks every side."""
        return self.statistics().gauges

    def __repr__(self) -> str:
        return f"<ReceivingSession {self.statistics()}>"

    # Opening

    def _open(self, order: Open, now: float) -> None:
        blocks = self._asker.blocks_of(order)
        try:
            sources = self._asker.sources_of(order.prefill)
        except ValueError as unpaired:
            self._refuse(order, "prefill_failed", "handshake", str(unpaired))
            return
        if len(sources) > self._ledger.slots_free:
            free = f"{self._ledger.slots_free} slots are free, not {len(sources)}"
            self._refuse(order, "peer_backlog", "admission", free)
            return
        effects: list[Effect] = []
        seqs = []
        for source in sources:
            link = self._link_to(source)
            entry, asked = self._ledger.open(
                room=order.room,
                peer=link.key,
                peer_name=link.name,
                blocks=blocks,
                prompt_len=order.prompt_len,
                deadline=now + order.remaining_ms / 1000,
                now=now,
            )
            self._slots.watch(entry.slot, seq=entry.seq, room=order.room)
            link.liveness.waits(now, True)
            seqs.append(entry.seq)
            effects += asked
        self._gathering.open(order.handoff, seqs)
        self._apply(effects, now)
        for source in sources:
            if (known := self._links.get(key_of(source))) is not None:
                self._reach(known, now)

    def _refuse(self, order: Open, code: ErrorCode, reason: RequestReason, message: str) -> None:
        self._failures.add(reason, self._engine.name, "")
        self._pending.append(HandoffFailed(handoff=order.handoff, code=code, message=message))
        self._pending.append(Drained(handoff=order.handoff))

    def _link_to(self, peer: PrefillPeer) -> PrefillLink:
        key = key_of(peer)
        if key not in self._links:
            self._links[key] = PrefillLink(
                identity=peer,
                outbox=channel.Outbox(2 * self._shape.slots + 3),
                liveness=Liveness(self._silence_s),
                hello_s=self._resend_s,
            )
        return self._links[key]

    # Hearing

    def _hear_links(self, now: float) -> dict[PeerKey, tuple[PrefillLink, str]]:
        """What the engine's links said; those that are lost, with why."""
        lost: dict[PeerKey, tuple[PrefillLink, str]] = {}
        heard = self._receiver.drain()
        by_token = {link.token: link for link in self._links.values() if link.token} if heard else {}
        for news in heard:
            link = by_token.get(news.token)
            if link is None:
                continue
            match news:
                case Linked():
                    link.hello_at = -math.inf
                case Announced():
                    self._wakefulness.announced(now)
                case Rung(seq=seq):
                    self._ledger.rang(link.key, seq)
                case Revoked(seq=seq):
                    self._apply(self._ledger.revoked(link.key, seq), now)
                case Lost(why=why):
                    lost[link.key] = link, why
        return lost

    def _read_slots(self, fenced: Iterable[PeerKey], now: float) -> None:
        """Also after a loss: what a peer finished before its death counts, and its death made it visible."""
        lost = set(fenced)
        self._records.refresh(self._slots.end, self._probing.end_of_watched)
        for _index, slot in self._slots.look():
            self._wakefulness.over(now)
            if slot.seq not in self._ledger:
                continue  # given up with another part of its hand-off, in this very loop
            entry = self._ledger[slot.seq]
            if not self._engine.caps.requires_doorbell or entry.rung or entry.peer in lost:
                self._apply(self._ledger.wrote(slot.seq, slot), now)
        for link in self._probing.seen():
            self._probing.end(link, now)

    def _hear_control(self, link: PrefillLink, now: float) -> None:
        for frames in link.receive():
            try:
                message = wire.read_to_decode(frames[0] if len(frames) == 1 else b"")
            except wire.MalformedFrame as error:
                self._blame(link.name, str(error))
                continue
            if message.token == link.token and self._links.get(link.key) is link:
                link.liveness.answered()
                self._apply(self._take(link, message, now), now)

    def _take(self, link: PrefillLink, message: wire.ToDecode, now: float) -> list[Effect]:
        match message:
            case wire.Welcome() if not link.welcomed:
                link.welcomed = True
                return self._ledger.linked(link.key, now)
            case wire.Refused(message=why) if not link.welcomed:
                self._close(link)
                return self._ledger.lost(link.key, f"refused: {why}", "handshake")
            case wire.ProbeFailed(seq=seq, message=why) if seq == link.liveness.probe_seq:
                self._probing.end(link, now, why)
                return []
            case _:
                return self._ledger.hear(link.key, message, now)

    # Reaching and watching

    def _reach(self, link: PrefillLink, now: float) -> None:
        """Connect, then say hello until it is answered."""
        if self._links.get(link.key) is not link:
            return
        try:
            says_hello = link.reach(self._receiver, self._context, now)
        except PeerGone as error:
            self._close(link)
            self._apply(self._ledger.lost(link.key, f"cannot be reached: {error}"), now)
            return
        if says_hello:
            link.put("hello", self._asker.hello(link.token, link.identity.incarnation), now)

    def _watch(self, link: PrefillLink, now: float) -> None:
        life = link.liveness
        life.waits(now, self._ledger.waits_for(link.key))
        for due in life.todo(now, welcomed=link.welcomed):
            match due:
                case "beat":
                    seqs = tuple(self._ledger.open_seqs(link.key)[: wire.MAX_BEAT_SEQS])
                    link.put("beat", wire.Beat(token=link.token, seqs=seqs), now)
                case "silent":
                    self._apply(self._ledger.silent(link.key, life.down.removeprefix("it "), now), now)
                case "unseen":
                    self._probing.end(link, now, "its probe was not seen in time")
                case "probe":
                    self._probing.begin(link, now)
        if not link.welcomed and not self._ledger.knows(link.key):
            self._close(link)

    def _close(self, link: PrefillLink) -> None:
        del self._links[link.key]
        self._probing.release(link)
        link.close(self._receiver)

    def _close_all(self) -> None:
        for link in list(self._links.values()):
            self._close(link)

    # Doing

    def _apply(self, effects: Iterable[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self._tell(effect, now)
                case Allow(peer=peer, seq=seq):
                    self._receiver.allow(self._link(peer).token, seq)
                case Revoke(peer=peer, seq=seq):
                    if self._receiver.revoke(self._link(peer).token, seq):
                        self._apply(self._ledger.revoked(peer, seq), now)
                case Delivered(peer=peer):
                    self._take_delivery(effect, self._link(peer), now)
                case Ended(seq=seq, peer=peer, code=code, message=message, reason=reason):
                    said = self._gathering.ended(seq, code, message)
                    if said:
                        self._failures.add(reason, self._engine.name, _place(peer))
                    self._gather(said, now)
                case Freed(seq=seq, index=index):
                    self._slots.forget(index)
                    self._gather(self._gathering.freed(seq), now)

    def _take_delivery(self, delivered: Delivered, link: PrefillLink, now: float) -> None:
        self._slots.forget(delivered.index)
        link.liveness.proven()
        said = self._gathering.delivered(delivered.seq, Part(delivered.slot, self._aux(delivered)))
        if any(isinstance(event, HandoffFailed) for event in said):
            self._failures.add("disagreed", self._engine.name, link.place)
        self._gather(said, now)

    def _aux(self, delivered: Delivered) -> TokenLogprobs | Literal["broken"] | None:
        slot = delivered.slot
        if not slot.has_aux:
            return None
        record = self._records.aux(delivered.index)
        return aux_record.accept(record, seq=slot.seq, room=slot.room) or "broken"

    def _gather(self, said: Iterable[DecodeEvent | GiveUp], now: float) -> None:
        for event in said:
            if isinstance(event, GiveUp):
                self._apply(self._ledger.abort(event.seq, event.code, now), now)
            else:
                self._pending.append(event)

    def _tell(self, tell: Tell, now: float) -> None:
        if tell.seq not in self._ledger:
            return  # what came before it in the same poll has concluded it
        entry, link = self._ledger[tell.seq], self._link(tell.peer)
        if tell.what == "abort":
            link.put(("abort", tell.seq), asking.abort(entry, link.token), now)
        else:
            link.put(("handshake", tell.seq), asking.handshake(entry, link.token, now), now)

    def _link(self, peer: Hashable) -> PrefillLink:
        assert isinstance(peer, PeerKey)
        return self._links[peer]

    def _flush(self) -> None:
        for link in self._links.values():
            link.flush()


def _place(peer: Hashable) -> str:
    assert isinstance(peer, PeerKey)
    return f"{peer.instance_id} rank {peer.dp}.{peer.cp}.{peer.tp}"
