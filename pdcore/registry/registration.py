"""The parent's side of its registrar: starts the process, says what is to be registered, hears how that goes.

The registrar is replaced when it dies while the parent lives, and told everything once more: it registers the same
incarnation again, without a probe, because the claim was taken already.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from pdcore import telemetry
from pdcore.clock import Clock, SystemClock
from pdcore.errors import ConfigError, Superseded
from pdcore.registry import machine, registrar_process
from pdcore.registry.claims import PID_STARTED
from pdcore.registry.lease import retry_after_s
from pdcore.registry.registrar_messages import PARENT, Leave, RegistrarSpec, Status, Want, Watch
from pdcore.registry.registrar_process import Wish
from pdcore.topology import codec, keys
from pdcore.topology.keys import RankId, RankPosition
from pdcore.topology.records import DepartureReason, InstanceRecord, RankRecord

log = telemetry.logger(__name__)

BEAT_S: Final = 1.0
BEATS_PER_TTL: Final = 4
LEAVE_S: Final = 3.0
LEAVE_SLACK_S: Final = 1.0
STEADY_S: Final = 10.0
"""A registrar that lived this long is replaced at once, a shorter-lived one after a growing pause."""


class Registration:
    """An incarnation's place in the keyspace, kept by a registrar process for the length of an ``async with``.

    What is to stand there is said with :meth:`put` and never awaited: trouble with the store shows in
    ``store_error`` and heals by itself. ``claimed``: this incarnation's claim was taken by another of its parents already, so
    that this one never takes it from anybody. Leaving the block without :meth:`leave` withdraws with reason ``left``.

    Mutable: ``_wish`` (all the registrar is told), ``_status`` (its last words), ``_owned`` (members ever put),
    ``registrar_pid`` (None while none runs), ``_ended`` (no registrar will follow).
    """

    def __init__(self, spec: RegistrarSpec, *, claimed: bool = False, clock: Clock | None = None) -> None:
        self._wish = Wish(spec, claimed=claimed)
        self._clock = clock or SystemClock()
        self._status = Status()
        self._owned: set[str] = set()
        self._changed = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []
        self._ended = False
        self.registrar_pid: int | None = None

    def __repr__(self) -> str:
        spec = self._wish.spec
        return f"<Registration {spec.instance_id} incarnation={spec.incarnation} registered={self.is_registered}>"

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self.watch_process(None, own := machine.open_pidfd(os.getpid()))
        os.close(own)
        beats = self.beat_pipe(None)
        self._running = [
            self._tasks.create_task(self._supervise(), name="registrar"),
            self._tasks.create_task(self._beat(beats), name="beat"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.leave("left")
        finally:
            for task in self._running:
                task.cancel()
            # An exception of the block leaves as it is, not in a group; only a cancellation may be the group's own.
            cancelled = isinstance(error, asyncio.CancelledError)
            await self._tasks.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))
            while self._wish.watches:
                os.close(self._wish.watches.pop()[1])

    @property
    def store_error(self) -> str | None:
        """Why the registrar's last call to the store failed; None while calls succeed."""
        return self._status.store_error

    @property
    def is_registered(self) -> bool:
        """Whether the newest record put is what the store was last seen to hold."""
        want = self._wish.want
        return want is not None and self._status.version == want.version

    @property
    def revision(self) -> int:
        """The store's revision as of which the registrar last saw everything in place; 0 before."""
        return self._status.revision

    @property
    def withdrawn(self) -> tuple[str, ...]:
        """Members (``0.0.0``, ``parent``) whose records are withdrawn because they exited or fell silent."""
        return self._status.withdrawn

    async def claim(self) -> None:
        """Return once the instance id is ours, however long the store is away.

        Raises ConfigError when a living incumbent holds it (one sentence), Superseded when a newer start took it.
        """
        await self._until(lambda: self._wish.claimed)

    def put(self, record: InstanceRecord | None, ranks: Mapping[RankPosition, RankRecord]) -> None:
        """Replace the whole desired record: the instance (None on a parent without leader) and this parent's ranks.

        A rank left out is withdrawn. Raises ConfigError when readers would reject a value.
        """
        instance_id = self._wish.spec.instance_id
        self._owned |= {str(position) for position in ranks}
        values: dict[str, str | None] = dict.fromkeys(self._owned)
        for position, rank in ranks.items():
            values[str(position)] = _checked(keys.rank(RankId(instance_id, position)), rank)
        instance = None if record is None else _checked(keys.instance(instance_id), _with_start(record))
        version = 1 if self._wish.want is None else self._wish.want.version + 1
        self._wish.want = Want(version=version, instance=instance, ranks=values)
        self._wish.news.set()

    def watch_process(self, position: RankPosition | None, pidfd: int) -> None:
        """Have the exit of this rank's process (None: the parent's) reported. ``pidfd`` stays the caller's."""
        self._watch(Watch(member=_member(position), what="process"), os.dup(pidfd))

    def beat_pipe(self, position: RankPosition | None) -> int:
        """The end of a pipe on which that process writes a byte at least once a second, never blocking.

        The caller owns it: pass it to the process and close it here. A full pipe is no error for the writer.
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._watch(Watch(member=_member(position), what="beats"), read_end)
        return write_end

    async def wait_registered(self, timeout_s: float) -> int:
        """The revision as of which the newest :meth:`put` stands.

        Raises TimeoutError, and what :meth:`claim` raises.
        """
        async with asyncio.timeout(timeout_s):
            await self._until(lambda: self.is_registered)
        return self.revision

    async def wait_superseded(self) -> Superseded:
        """Return when another start has taken the claim: stop serving."""
        while (superseded := self._superseded()) is None:
            await self._change()
        return superseded

    async def leave(self, reason: DepartureReason, timeout_s: float = LEAVE_S) -> bool:
        """Withdraw everything for good, saying why; whether that is known to have happened within ``timeout_s``.

        A second call waits for the first. Without success the keys go with their lease.
        """
        if self._wish.leave is None:
            self._wish.leave = Leave(reason=reason, timeout_s=timeout_s)
            self._wish.news.set()
        try:
            async with asyncio.timeout(timeout_s + LEAVE_SLACK_S):
                while not self._is_over():
                    await self._change()
        except TimeoutError:
            return False
        return self._status.left

    async def _supervise(self) -> None:
        try:
            await self._keep_one_running()
        finally:
            self._ended = True
            self._notify()

    async def _keep_one_running(self) -> None:
        failures = 0
        while not self._is_over():
            started = self._clock.now()
            try:
                exit_status: int | str = await registrar_process.live(self._wish, self._started, self._heard)
            except OSError as error:
                exit_status = str(error)
            self.registrar_pid = None
            if self._is_over() or (self._wish.leave is not None and exit_status == 0):
                break
            failures = 1 if self._clock.now() - started > STEADY_S else failures + 1
            log.warning("registrar ended; starting another", exit_status=exit_status)
            self._heard(Status())
            await self._clock.sleep(retry_after_s(failures, random.random()))

    def _started(self, pid: int) -> None:
        self.registrar_pid = pid

    def _heard(self, status: Status) -> None:
        """What was claimed once stays so for the next registrar."""
        if status.claimed:
            self._wish.claimed, self._wish.predecessor = True, status.predecessor
        self._status = status
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _beat(self, pipe: int) -> None:
        try:
            while True:
                beat(pipe)
                await self._clock.sleep(min(BEAT_S, self._wish.spec.ttl_s / BEATS_PER_TTL))
        finally:
            os.close(pipe)

    def _watch(self, watch: Watch, descriptor: int) -> None:
        self._wish.watches.append((watch, descriptor))
        self._wish.news.set()

    def _superseded(self) -> Superseded | None:
        holder = self._status.superseded_by
        return None if holder is None else Superseded(self._wish.spec.instance_id, holder)

    def _is_over(self) -> bool:
        status = self._status
        return self._ended or status.left or status.refused is not None or status.superseded_by is not None

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if (superseded := self._superseded()) is not None:
                raise superseded
            if self._status.refused is not None:
                raise ConfigError(self._status.refused)
            await self._change()

    async def _change(self) -> None:
        await self._changed.wait()


def beat(pipe: int) -> None:
    """One sign of life. A pipe that is full, or that nobody reads any more, does not concern the one who beats."""
    try:
        os.write(pipe, b".")
    except (BlockingIOError, BrokenPipeError):
        return


def _member(position: RankPosition | None) -> str:
    return PARENT if position is None else str(position)


def _checked(key: str, record: InstanceRecord | RankRecord) -> str:
    value = codec.encode(record)
    read = codec.decode(key, value)
    if isinstance(read, codec.Rejected):
        raise ConfigError(f"{key} cannot be registered: {read.reason}")
    return value.decode()


def _with_start(record: InstanceRecord) -> InstanceRecord:
    """When the leader's process started, so that a later start can tell it from another one with its pid."""
    started = machine.process_started(record.pid) if record.boot_id == machine.boot_id() else None
    return record if started is None else record._replace(extra={**record.extra, PID_STARTED: started})
