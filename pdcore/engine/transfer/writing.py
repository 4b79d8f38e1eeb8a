"""Who writes. A job is one room towards one decode rank: its KV and aux record, then (a second call) its slot, then the
bell. A job without copies is a probe, or a part that is empty: its record alone. A job that goes *ahead* is a part of a
room's KV without a record; if it fails, the slot says so all the same.

Small jobs are written by the session's own thread where the link allows it: a thread that has to be woken gets the
interpreter and a CPU only after a millisecond, which is longer than such a job takes. The others have threads, and so
have those that go ahead.

A job ends with one :class:`Written`, whatever happens: also when it was stopped before its first write, when it was
never started, and when the engine broke in a way nobody foresaw, which counts as in doubt.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from pdcore.clock import Clock
from pdcore.engine.transfer import slot
from pdcore.engine.transfer.engine import Sender
from pdcore.engine.transfer.pair_plan import NOTHING
from pdcore.engine.transfer.plan import WriteOps, batches
from pdcore.engine.transfer.rooms import Outcome
from pdcore.engine.transfer.slot import Slot, SlotStatus
from pdcore.engine.transfer.turns import Turns
from pdcore.errors import PeerError
from pdcore.telemetry import logger

_BATCH_BYTES: Final = 64 << 20
_INLINE_PER_TURN: Final = 8 << 20
_INLINE_COPIES: Final = 1024


@dataclass(slots=True, kw_only=True, eq=False)
class WriteJob:
    """What to write over one link. ``ops`` is worked out by whoever writes and moves ``most_bytes`` at most; ``aux`` is
    the offset of its record, and the record. ``stopped`` is set by the session and read between two calls. Room 0 is
    a probe's. ``ahead``: others of this seq follow, after this one has ended; unless ``signs``, which is set while it
    is not ``closed``, leaves nothing to others but its slot and aux record, which are written by this one then."""

    room: int
    token: bytes
    seq: int
    slot_offset: int
    deadline: float
    ops: Callable[[], WriteOps] = field(default=lambda: NOTHING, repr=False)
    most_bytes: int = 0
    aux: tuple[int, bytes] | None = None
    first_token: int = 0
    kv_len: int = 0
    cached_blocks: int = 0
    ahead: bool = False
    stopped: bool = False
    closed: bool = False
    signs: WriteJob | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """How a job ended. ``unrung``: the slot is there, the bell has yet to be rung."""

    job: WriteJob
    outcome: Outcome
    message: str = ""
    unrung: bool = False


class _Stopped(Exception):
    """The job may not submit another write."""


class Writers:
    """A bounded pool of threads over one sender. Everything but the jobs runs in the session's thread."""

    def __init__(self, sender: Sender, clock: Clock, threads: int) -> None:
        self._sender = sender
        self._clock = clock
        self._turns: Turns[bytes, WriteJob] = Turns(threads)
        self._turn = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"kv-write-{number}") for number in range(threads)
        ]
        self._inline_left = _INLINE_PER_TURN
        self._ended: deque[Written] = deque()
        self._log = logger(__name__)

    def __enter__(self) -> Self:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the writes under way, which end within the engine's own deadline."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()
        os.close(self._wake)

    def fileno(self) -> int:
        """Readable when a job ended since the last ``drain``."""
        return self._wake

    def start(self, job: WriteJob) -> None:
        """Write the job now or have a thread do it; it ends with one ``Written``, told by the next ``drain``."""
        if self._is_small(job):
            self._inline_left -= job.most_bytes
            self._end(self._run(job))
            return
        with self._turn:
            self._turns.put(job.token, job)
            self._turn.notify()

    def stop(self, job: WriteJob) -> None:
        """Submit no further write of this job. One that has not begun ends here."""
        job.stopped = True
        with self._turn:
            waited = self._turns.withdraw(job.token, job)
        if waited:
            self._end(Written(job, "failed", "stopped before its first write"))

    def sign(self, job: WriteJob, last: WriteJob) -> None:
        """Have ``job``, which goes ahead, do what ``last`` would, which copies nothing. If it has ended, nothing happens."""
        with self._turn:
            if not job.closed:
                job.signs = last

    def forget(self, token: bytes) -> None:
        """The link is gone."""
        with self._turn:
            self._turns.forget(token)

    def drain(self) -> list[Written]:
        """Jobs that ended. Call it once per turn of the loop: between two calls little is written inline."""
        self._inline_left = _INLINE_PER_TURN
        return self.ended()

    def ended(self) -> list[Written]:
        """Jobs that ended, at any other time."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return []
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def _is_small(self, job: WriteJob) -> bool:
        if job.ahead:
            return False  # while it is written, more is computed
        limit = self._sender.inline_bytes(job.token)
        if not limit or job.most_bytes > min(limit, self._inline_left):
            return False
        ops = job.ops()
        job.ops = lambda: ops
        return len(ops) <= _INLINE_COPIES

    def _work(self) -> None:
        while True:
            with self._turn:
                job, began = self._next()
            if job is None:
                return
            written = self._run(job)
            with self._turn:
                self._turns.done(job.token, began, in_doubt=written.outcome == "in_doubt")
                self._turn.notify()
            self._end(written)

    def _next(self) -> tuple[WriteJob | None, float]:
        """Wait for a job whose turn it is; None when the pool closes. Whoever has to wait looks again at each end."""
        while not self._closing:
            now = self._clock.now()
            job = self._turns.take(now)
            if job is not None:
                return job, now
            self._turn.wait()
        return None, 0.0

    def _run(self, job: WriteJob) -> Written:
        try:
            return self._attempt(job)
        except Exception as error:
            self._log.exception("kv write broke", room=job.room)
            return Written(job, "in_doubt", f"the write broke: {error!r}")

    def _end(self, written: Written) -> None:
        self._ended.append(written)
        os.eventfd_write(self._wake, 1)

    def _attempt(self, job: WriteJob) -> Written:
        try:
            for part in _parts(job):
                self._may_go_on(job)
                self._sender.write(job.token, part, job.seq)
            self._may_go_on(job)
            last = self._last_of(job)
            if last is None:
                return Written(job, "written")
            if last.aux is not None:
                self._sender.write_bytes(last.token, *last.aux, last.seq)
        except _Stopped as stopped:
            return Written(job, "failed", str(stopped))
        except PeerError as error:
            return self._report_failure(job, error)
        try:
            return Written(job, "delivered", unrung=self._put_slot(last, SlotStatus.DELIVERED))
        except PeerError as error:
            return Written(job, _outcome(error), str(error))

    def _last_of(self, job: WriteJob) -> WriteJob | None:
        """Whose slot is to be written now that the copies are there; None, for good, when others follow."""
        if not job.ahead:
            return job
        with self._turn:
            job.closed = job.signs is None
            return job.signs

    def _may_go_on(self, job: WriteJob) -> None:
        if job.stopped:
            raise _Stopped("stopped before its slot was written")
        if self._clock.now() >= job.deadline:
            raise _Stopped("the deadline passed before the next write")

    def _report_failure(self, job: WriteJob, error: PeerError) -> Written:
        """Say so in the slot as well: decode then knows without waiting for our loop's next turn."""
        status = SlotStatus.IN_DOUBT if error.in_doubt else SlotStatus.FAILED
        outcome, unrung = _outcome(error), False
        try:
            unrung = self._put_slot(job, status)
        except PeerError as second:
            outcome = "in_doubt" if second.in_doubt else outcome
        return Written(job, outcome, str(error), unrung)

    def _put_slot(self, job: WriteJob, status: SlotStatus) -> bool:
        delivered = status is SlotStatus.DELIVERED
        record = Slot(
            seq=job.seq,
            room=job.room,
            token=job.first_token if delivered else 0,
            kv_len=job.kv_len if delivered else 0,
            status=status,
            has_aux=delivered and job.aux is not None,
            cached_blocks=min(job.cached_blocks, slot.MAX_CACHED) if delivered else 0,
        )
        self._sender.write_bytes(job.token, job.slot_offset, slot.encode(record), job.seq)
        return not self._sender.ring(job.token, job.seq)


def _parts(job: WriteJob) -> Iterable[WriteOps]:
    ops = job.ops()
    return batches(ops, _BATCH_BYTES) if job.most_bytes > _BATCH_BYTES else (ops,) if len(ops) else ()


def _outcome(error: PeerError) -> Outcome:
    return "in_doubt" if error.in_doubt else "failed"
