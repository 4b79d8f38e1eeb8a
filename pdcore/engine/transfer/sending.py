"""Prefill's session: takes links and handshakes of decode ranks, and writes the KV of prompts.

A thin shell round :class:`SendLedger`, and a prefill rank's side of hand-offs. It never connects anywhere: decode ranks
connect to it, and the only memory it writes is what they passed over a link that authenticated them. The rank's
single-threaded loop calls ``obey`` as orders come, ``poll`` once per turn, and sleeps on ``pollables`` until
``next_wake``. Nothing blocks: KV moves on the writers' threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

import zmq

from pdcore.clock import Clock
from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import aux_record, channel, wire
from pdcore.engine.transfer.blame import Blame
from pdcore.engine.transfer.decode_ranks import DecodeRanks
from pdcore.engine.transfer.engine import Linked, Lost, TransferEngine
from pdcore.engine.transfer.failures import FailureCounts
from pdcore.engine.transfer.gauges import SideGauges
from pdcore.engine.transfer.links import Say
from pdcore.engine.transfer.mapping import GroupSizes
from pdcore.engine.transfer.opening import Parts
from pdcore.engine.transfer.orders import (
    Announce,
    Expect,
    Fail,
    Order,
    PrefillEvent,
    Send,
    SendAhead,
    WriteEnded,
)
from pdcore.engine.transfer.plan import Buffer, RegionShape, lists_problem
from pdcore.engine.transfer.rooms import Count, Effect, Leg, Release, Shake, Sign, StopWrite, Write
from pdcore.engine.transfer.send_ledger import SILENCE_S, SendLedger
from pdcore.engine.transfer.send_statistics import SendStatistics
from pdcore.engine.transfer.states import TransferState
from pdcore.engine.transfer.writing import WriteJob, Writers, Written
from pdcore.errors import PeerGone
from pdcore.telemetry import logger

_MESSAGES_PER_POLL: Final = 256
_PROBE_S: Final = 5.0
_PROBE_ROOM: Final = 0


class Endpoint(NamedTuple):
    """What the rank's record says about reaching it."""

    rank_ip: str
    rank_port: int
    transfer: dict[str, object]


class SendingSession(Parts):
    """See the module. ``layout`` is the whole model's, ``blocks`` counts this rank's per KV group."""

    def __init__(
        self,
        *,
        layout: KvLayout,
        blocks: tuple[int, ...],
        source: Buffer,
        sizes: GroupSizes,
        identity: wire.RankIdentity,
        engine: TransferEngine,
        bind_ip: str,
        runtime_dir: Path,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Clock,
        threads: int = 4,
        rooms_most: int = 4096,
        stash_most: int = 4096,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._source = RegionShape(layout.shard(sizes.tp, identity.tp), blocks)
        self._engine_name = engine.name
        self._bind_ip = bind_ip
        self._context = context
        self._clock = clock
        self._sender = engine.sender(source, runtime_dir)
        self._writers = Writers(self._sender, clock, threads)
        self._ledger = SendLedger(rooms_most=rooms_most, stash_most=stash_most, silence_s=silence_s)
        self._offers: dict[bytes, int] = {}
        self._decodes = DecodeRanks(layout=layout, source=self._source, sizes=sizes, identity=identity)
        self._orders: dict[int, SendAhead | Send] = {}
        self._jobs: dict[tuple[int, bytes], WriteJob] = {}
        self._unrung: dict[tuple[bytes, int], None] = {}
        self._pending: list[PrefillEvent] = []
        self._failures = FailureCounts()
        self._strays = 0
        self._log = logger(__name__)
        self._blame = Blame(self._log, "malformed control message")

    def enter(self, stack: ExitStack) -> None:
        """The socket on which decode ranks ask, the engine's end, and who writes through it."""
        self._router = stack.enter_context(channel.open_socket(self._context, zmq.ROUTER))
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._port = channel.bind(self._router, self._bind_ip)
        stack.enter_context(self._sender)
        stack.enter_context(self._writers)  # left first: no write outlives the mappings

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs.values():
            job.stopped = True
        super().__exit__(kind, error, trace)

    @property
    def endpoint(self) -> Endpoint:
        """For the rank's record in the keyspace."""
        return Endpoint(self._bind_ip, self._port, self._sender.endpoint())

    def pollables(self) -> list[int | zmq.Socket[bytes]]:
        """What the loop sleeps on."""
        return [self._router, self._writers.fileno(), *self._sender.pollables()]

    def next_wake(self) -> float:
        """When ``poll`` has something to do even if nothing is readable; the past means now."""
        return -math.inf if self._pending else self._ledger.next_wake()

    def obey(self, order: Order, now: float) -> None:
        """Do it; what comes of it is an event.

        ``IllegalTransition`` or ``ValueError`` for what no leader may order to be sent: a room that is not handshaken, or
        blocks that do not hold it. Nothing changed then.
        """
        match order:
            case Expect(room=room, expected_peer=expected, prompt_len=prompt_len):
                leg = Leg(expected, prompt_len, now + order.remaining_ms / 1000)
                self._apply(self._ledger.expect(room, leg, now))
            case SendAhead() | Send():
                self._send(order, now)
            case Announce(room=room):
                for token in self._ledger.destinations(room):
                    self._sender.announce(token)
            case Fail(room=room, code=code, message=message):
                self._apply(self._ledger.fail(room, code, message, now))
            case _:
                raise TypeError(f"a prefill rank was ordered to {type(order).__name__}")
        self._flush()

    def state(self, room: int) -> TransferState | None:
        """Where ``room`` stands, None when it is over or unknown."""
        return self._ledger.state(room)

    def poll(self, now: float) -> list[PrefillEvent]:
        """Everything that happened since the last call."""
        self._end_writes(self._writers.drain(), now)
        self._ring_again()
        self._hear_links(now)
        for frames in channel.receive(self._router, _MESSAGES_PER_POLL):
            self._hear(frames, now)
        self._apply(self._ledger.tick(now))
        self._flush()
        events, self._pending = self._pending, []
        return events

    def statistics(self) -> SendStatistics:
        """Counts of this instant, and totals since the session opened."""
        counts = self._ledger.counts()
        return SendStatistics(
            rooms=counts.rooms,
            stashed=counts.stashed,
            writing=counts.writing,
            pinned=counts.pinned,
            peers=counts.links,
            malformed=self._blame.malformed,
            strays=self._strays,
            dropped=self._decodes.dropped,
            failures=self._failures.statistics(),
        )

    def gauges(self) -> SideGauges:
        """The same for whoever asks every side."""
        return self.statistics().gauges()

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<SendingSession {s.rooms} rooms, {s.stashed} stashed, {s.writing} writing, {s.peers} peers>"

    # Hearing

    def _hear_links(self, now: float) -> None:
        for news in self._sender.drain():
            match news:
                case Linked(token=token, nbytes=nbytes):
                    self._offers[token] = nbytes
                case Lost(token=token):
                    self._offers.pop(token, None)
                    self._decodes.forget(token)
                    self._writers.forget(token)
                    self._apply(self._ledger.lost(token, now))

    def _hear(self, frames: Sequence[bytes], now: float) -> None:
        try:
            message = wire.read_to_prefill(frames[1] if len(frames) == 2 else b"")
        except wire.MalformedFrame as error:
            self._blame(frames[0].hex(), str(error))
            return
        if isinstance(message, wire.Hello | wire.Greeting):
            self._greet(message, frames[0], now)
        elif self._ledger.heard(message.token, now):
            self._decodes.heard(message.token, frames[0])
            self._apply(self._take(message, now))
        else:
            self._strays += 1

    def _take(
        self, message: wire.Handshake | wire.Beat | wire.Abort | wire.Probe, now: float
    ) -> list[Effect]:
        match message:
            case wire.Handshake():
                return self._ledger.handshake(message, now)
            case wire.Beat():
                return self._ledger.beat(message)
            case wire.Abort():
                return self._ledger.abort(message, now)
            case wire.Probe():
                self._probe(message, now)
                return []

    def _greet(self, hello: wire.Hello | wire.Greeting, route: bytes, now: float) -> None:
        """Answer hello, as often as it comes. The offer was made before hello was sent, so it can be read now."""
        if hello.token not in self._offers:
            self._hear_links(now)
        if hello.token not in self._offers:
            self._strays += 1
            return
        self._decodes.heard(hello.token, route)
        problem = None
        if not self._ledger.heard(hello.token, now):
            met = self._decodes.meet(hello, self._offers[hello.token])
            if isinstance(met, str):
                problem = met
            else:
                self._ledger.welcome(hello.token, met.pair, now)
        self._decodes.answer_hello(hello.token, problem)

    # Doing

    def _send(self, order: SendAhead | Send, now: float) -> None:
        # a write that ended lets the next begin now and not in the next turn
        self._end_writes(self._writers.ended(), now)
        ahead = isinstance(order, SendAhead)
        if self._ledger.has_nothing_to_send(order.room, now, ahead=ahead):
            if order.first:  # else a write of it may be under way, and its end is or was told by itself
                self._pending.append(WriteEnded(room=order.room))
            return
        problem = lists_problem(order.blocks, self._source, order.kv_len)
        if problem is not None:
            raise ValueError(problem)
        if isinstance(order, SendAhead):
            writes = self._ledger.send_ahead(order.room, order.kv_len, order.computed)
        else:
            writes = self._ledger.start(order.room, order.kv_len)
        self._orders[order.room] = order
        self._apply(writes)

    def _begin(self, write: Write) -> None:
        """As much as was ordered last: the ledger asks for all that is ready."""
        job = self._job(self._orders[write.room], write.shake, write.tokens)
        self._jobs[write.room, job.token] = job
        self._writers.start(job)

    def _job(self, order: SendAhead | Send, shake: Shake, tokens: range) -> WriteJob:
        token, shape = shake.link.token, shake.link.pair.shape
        plan = self._decodes[token].plan
        assert plan is not None, "a room is only asked for over a link that was welcomed"
        job = WriteJob(
            room=order.room,
            token=token,
            seq=shake.seq,
            ops=partial(plan.copies, order.blocks, shake.blocks, order.kv_len, tokens),
            most_bytes=plan.most_bytes(order.kv_len, tokens),
            slot_offset=shape.slot_offset(shake.slot),
            deadline=shake.deadline,
            ahead=isinstance(order, SendAhead),
        )
        if isinstance(order, Send):
            job.first_token, job.kv_len = order.first_token, order.kv_len
            job.cached_blocks = order.cached_blocks
            if order.aux is not None:
                record = aux_record.encode(order.aux, seq=shake.seq, room=order.room)
                job.aux = shape.aux_offset(shake.slot), record
        return job

    def _probe(self, message: wire.Probe, now: float) -> None:
        """At most one at a time per link."""
        decode = self._decodes[message.token]
        if decode.shape is None or decode.probing:
            return
        if not self._ledger.begin_probe(message.token, message.seq, message.probe):
            return
        decode.probing = True
        offset = decode.shape.probe_offset(message.probe)
        self._writers.start(
            WriteJob(
                room=_PROBE_ROOM,
                token=message.token,
                seq=message.seq,
                slot_offset=offset,
                deadline=now + _PROBE_S,
            )
        )

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(token=token, message=message):
                    self._decodes.say(token, message)
                case Write():
                    self._begin(effect)
                case Sign(room=room, shake=shake):
                    last = self._job(self._orders[room], shake, range(0))
                    self._writers.sign(self._jobs[room, last.token], last)
                case StopWrite(room=room, token=token):
                    self._writers.stop(self._jobs[room, token])
                case Release(token=token):
                    self._sender.release(token)
                case Count(reason=reason, peer=peer):
                    self._failures.add(reason, self._engine_name, peer)
                case WriteEnded(room=room):
                    del self._orders[room]
                    self._pending.append(effect)
                case _:
                    self._pending.append(effect)

    def _end_writes(self, ended: Iterable[Written], now: float) -> None:
        for written in ended:
            self._end_write(written, now)

    def _end_write(self, written: Written, now: float) -> None:
        job = written.job
        if written.unrung:
            self._unrung[job.token, job.seq] = None
        if job.room == _PROBE_ROOM:
            self._end_probe(written)
            return
        del self._jobs[job.room, job.token]
        self._apply(self._ledger.write_ended(job.room, job.token, written.outcome, written.message, now))

    def _end_probe(self, written: Written) -> None:
        job = written.job
        decode = self._decodes.get(job.token)
        if decode is not None:
            decode.probing = False
        self._apply(self._ledger.probe_ended(job.token))
        if written.outcome != "delivered":
            self._decodes.say(
                job.token, wire.ProbeFailed(token=job.token, seq=job.seq, message=wire.short(written.message))
            )

    def _ring_again(self) -> None:
        """Bells that found a full socket: decode sleeps, and off x86 the slot does not count without."""
        for token, seq in list(self._unrung):
            try:
                if self._sender.ring(token, seq):
                    del self._unrung[token, seq]
            except PeerGone:
                del self._unrung[token, seq]

    def _flush(self) -> None:
        self._decodes.flush(partial(channel.send, self._router))
