"""The life of a leader process, from its claim to its exit status.

    claim the instance id → start ranks → all ready → register → serve → drain → leave

Whatever ends it is an :class:`Ending`, reported by the task that watches for it; the first one counts. HTTP answers
during the whole life. Nothing here computes: text is :mod:`pdcore.engine.generation`, tokens are the ranks'.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from pdcore import telemetry
from pdcore.clock import Clock, SystemClock
from pdcore.config import EngineConfig
from pdcore.engine.app import create_app
from pdcore.engine.bootstrap import bootstrap_app, rooms_of
from pdcore.engine.dispatch import Dispatch
from pdcore.engine.ending import OK, RANK_DIED, REFUSED, SUPERSEDED, TERMINATED, Ending
from pdcore.engine.generation import Engine
from pdcore.engine.local_ranks import LocalRanks, Machine, how
from pdcore.engine.meeting import open_meeting
from pdcore.engine.messages import Ready
from pdcore.engine.metrics import Metrics
from pdcore.engine.obedience import Deeds, Obedience
from pdcore.engine.parents import FollowerParents
from pdcore.engine.peers import Peers
from pdcore.engine.process import beside, runtime_directory, signals
from pdcore.engine.rank_process import RANK_COMMAND
from pdcore.engine.records import by_node, instance_record, rank_records, standing
from pdcore.engine.startup import Startup, shape_of, starting
from pdcore.engine.state import LeaderState
from pdcore.errors import ConfigError, ErrorCode, Superseded
from pdcore.http_server import answering
from pdcore.registry.connect import admitted_store
from pdcore.registry.desired import Fence
from pdcore.registry.follower import Follower
from pdcore.registry.leaders import LEAVE_S, Announcement, LeaderWord
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace, RankPosition
from pdcore.topology.records import Role, State

FIRST_STATUS_S: Final = 1.0
STATUS_EVERY_S: Final = 5.0
LAST_WORDS_S: Final = 1.0
PEER_ROLES: Final[Mapping[Role, tuple[Role, ...]]] = {"prefill": (), "decode": ("prefill",), "unified": ()}

log = telemetry.logger(__name__)


async def run(
    config: EngineConfig, *, rank_command: Sequence[str] = RANK_COMMAND, clock: Clock | None = None
) -> int:
    """Be a leader until something ends it; the process's exit status. ConfigError when it cannot even start."""
    with starting(config) as startup, runtime_directory() as runtime_dir:
        identity = startup.identity
        telemetry.configure(
            config.log_format,
            config.log_level,
            role=identity.role,
            instance_id=identity.instance_id,
            incarnation=identity.incarnation,
        )
        leader = Leader(startup, runtime_dir, rank_command, clock or SystemClock())
        async with leader:
            return await leader.live()


class Leader:
    """Enter it to answer HTTP; :meth:`live` does the rest. Mutable: ``_endings``, ``_ranks``, ``_ready``."""

    def __init__(
        self, startup: Startup, runtime_dir: Path, rank_command: Sequence[str], clock: Clock
    ) -> None:
        self._startup = startup
        self._runtime_dir = runtime_dir
        self._clock = clock
        identity = startup.identity
        self._state = LeaderState(
            role=identity.role,
            instance_id=identity.instance_id,
            incarnation=identity.incarnation,
            models=identity.models,
        )
        self._endings: asyncio.Queue[Ending] = asyncio.Queue()
        self._ranks = LocalRanks(rank_command)
        self._ready: dict[RankPosition, Ready] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Leader:
        async with AsyncExitStack() as stack:
            config, startup = self._startup.config, self._startup
            keyspace = Keyspace(cluster=config.cluster)
            store = await stack.enter_async_context(admitted_store(config.store_access, keyspace))
            self._follower = Follower(store, keyspace, clock=self._clock)
            await stack.enter_async_context(self._follower)
            self._fleet = Fleet(
                self._follower,
                probe_timeout_s=config.probe_timeout_s,
                roles=PEER_ROLES[startup.identity.role],
                clock=self._clock,
            )
            await stack.enter_async_context(self._fleet)
            self._registration = await stack.enter_async_context(
                Registration(_spec(startup, self._runtime_dir))
            )
            await self._meet(stack, store, keyspace)
            self._rooms = await stack.enter_async_context(rooms_of(startup, store, self._clock))
            await stack.enter_async_context(answering(create_app(self._engine()), startup.listener))
            if startup.bootstrap is not None:
                bootstrap = bootstrap_app(self._state, lambda: self._follower.topology, self._rooms)
                await stack.enter_async_context(answering(bootstrap, startup.bootstrap))
            self._open = stack.pop_all()
        log.info("leader listening", url=startup.identity.url, bootstrap_port=startup.identity.bootstrap_port)
        return self

    async def _meet(self, stack: AsyncExitStack, store: Store, keyspace: Keyspace) -> None:
        """Open everything at which ranks and follower parents meet this leader, and know what to tell them."""
        startup, placement, secret = self._startup, self._startup.placement, self._startup.config.curve_secret
        meeting = stack.enter_context(open_meeting(placement, self._runtime_dir, startup.rank_ip))
        stack.enter_context(self._ranks)
        self._dispatch = stack.enter_context(
            Dispatch(
                meeting.dispatch,
                placement.sizes.positions(),
                max_held=startup.config.max_queue,
                secret=secret,
            )
        )
        self._parents = await stack.enter_async_context(
            FollowerParents(meeting.parents, range(1, placement.nnodes), self._clock, secret=secret)
        )
        word = LeaderWord(
            incarnation=startup.identity.incarnation,
            url=startup.identity.url,
            parents=self._parents.address,
            dispatch=self._dispatch.address,
            rendezvous=meeting.rendezvous,
            shape=shape_of(startup.config),
        )
        self._announcement = Announcement(
            store,
            Fence(
                keyspace=keyspace,
                instance_id=startup.identity.instance_id,
                incarnation=startup.identity.incarnation,
            ),
            word,
            ttl_s=startup.config.lease_ttl_s,
            clock=self._clock,
        )
        self._state.word = word
        self._machine = Machine(
            config=startup.config,
            placement=placement,
            word=word,
            instance_id=startup.identity.instance_id,
            rank_ip=startup.rank_ip,
            runtime_dir=self._runtime_dir,
            rendezvous_fd=meeting.rendezvous_fd,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def live(self) -> int:
        """Come up, serve, and go down in order; the exit status. ConfigError when this instance cannot be."""
        async with signals(self._on_signal), beside(self._watch_claim(), self._come_up()):
            ending = await self._endings.get()
            if ending is TERMINATED:
                ending = await self._drain()
            await self._go_down(ending)
        if ending.refused is not None:
            raise ending.refused
        return ending.status

    # coming up

    async def _come_up(self) -> None:
        """Until this instance serves; afterwards watch what it is made of."""
        try:
            await self._claim()
            self._state.why = "the ranks are loading the model"
            self._ranks.start(self._machine, self._registration)
            async with beside(self._watch_ranks(), self._watch_parents(), self._tell_parents()):
                await self._serve()
                await self._obedience().run()
                await asyncio.Event().wait()
        except ConfigError as wrong:
            self._end(Ending(status=REFUSED, why=str(wrong), refused=wrong))
        except Superseded as lost:
            self._end(Ending(status=SUPERSEDED, why=str(lost), departure=None))

    async def _claim(self) -> None:
        async with beside(self._say_while_waiting("claiming the instance id")):
            await self._registration.claim()
        log.info("instance claimed")

    async def _serve(self) -> None:
        async with beside(self._say_who_is_missing()):
            self._ready = dict(await self._dispatch.wait_ready())
        self._put("starting")
        self._parents.register(by_node(self._startup.placement, self._ready))
        async with beside(self._say_while_waiting("registering")):
            await self._wait_registered()
            await self._parents.wait_registered()
        record = self._state.record
        assert record is not None
        self._state.context_length = record.compat.context_length
        self._state.kv_tokens = min(rank.kv_tokens for rank in self._ready.values())
        self._state.dp_size = record.dp_size
        self._state.enter("serving", "its record is on its way to the store")
        await self._announce()
        log.info("leader serving", models=",".join(record.models), kv_tokens=record.kv_tokens)

    async def _announce(self) -> None:
        self._put("serving")
        await self._wait_registered()
        self._state.announced = self._state.phase == "serving"

    def _obedience(self) -> Obedience:
        deeds = Deeds(
            tell_draining=lambda drained: self._put("draining", drained=drained),
            serve_again=self._announce,
            end=lambda why: self._end(Ending(status=RANK_DIED, why=why, departure="ordered")),
        )
        return Obedience(self._follower, self._state, deeds)

    async def _wait_registered(self) -> None:
        while True:
            try:
                await self._registration.wait_registered(STATUS_EVERY_S)
                return
            except TimeoutError:
                continue

    async def _say_who_is_missing(self) -> None:
        """Tell people what an instance of several machines waits for."""
        while True:
            await self._clock.sleep(STATUS_EVERY_S)
            if machines := self._parents.missing:
                names = ", ".join(map(str, machines))
                self._state.why = f"machines that have not joined: {names}"
                log.info("leader waiting", waiting=self._state.why)

    async def _say_while_waiting(self, what: str) -> None:
        """Tell people, in the log and on ``/ready``, that the store is what is being waited for."""
        self._state.why = what
        pause_s = FIRST_STATUS_S
        while True:
            await self._clock.sleep(pause_s)
            pause_s = STATUS_EVERY_S
            trouble = self._registration.store_error or self._follower.last_error
            self._state.why = what if trouble is None else f"{what}; the store does not answer: {trouble}"
            say = log.info if trouble is None else log.warning
            say("leader waiting", waiting=what, store_error=trouble)

    # what may end it

    async def _watch_claim(self) -> None:
        lost = await self._registration.wait_superseded()
        self._end(Ending(status=SUPERSEDED, why=str(lost), departure=None))

    async def _watch_ranks(self) -> None:
        rank, status = await self._ranks.wait_first_exit()
        refused = status == REFUSED and not self._ready
        why = f"rank {rank} {how(status)}"
        self._end(Ending(status=REFUSED if refused else RANK_DIED, why=why, departure="died"))

    async def _watch_parents(self) -> None:
        lost = await self._parents.watch()
        self._end(Ending(status=RANK_DIED, why=lost, departure="died"))

    async def _tell_parents(self) -> None:
        """Where the other machines find this one, for as long as it lives."""
        if self._startup.placement.nnodes == 1:
            return
        try:
            await self._announcement.keep()
        finally:
            async with asyncio.timeout(LEAVE_S):
                await self._announcement.withdraw()

    def _on_signal(self, number: signal.Signals, times: int) -> None:
        log.info("signal received", signal=number.name, times=times)
        if times == 1:
            self._end(TERMINATED)
            return
        self._ranks.kill()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)
        os._exit(128 + number)

    def _end(self, ending: Ending) -> None:
        self._endings.put_nowait(ending)

    # going down

    async def _drain(self) -> Ending:
        """Refuse new requests, let those in flight finish; what ended that."""
        if self._state.phase not in ("serving", "draining"):
            return TERMINATED
        idle = replace(TERMINATED, departure="drained") if self._state.phase == "draining" else TERMINATED
        self._state.enter("draining", "the process was told to end")
        self._put("draining")
        log.info("leader draining", in_flight=self._state.in_flight)
        async with beside(self._report_idle(idle)):
            try:
                async with asyncio.timeout(self._startup.config.drain_timeout_s):
                    return await self._endings.get()
            except TimeoutError:
                log.warning("drain timed out", in_flight=self._state.in_flight)
                return TERMINATED

    async def _report_idle(self, idle: Ending) -> None:
        await self._state.wait_idle()
        self._end(idle)

    async def _go_down(self, ending: Ending) -> None:
        say = log.info if ending.status in (OK, REFUSED) else log.error
        say("leader ending", reason=ending.why, status=ending.status)
        self._state.enter("draining" if ending.status == OK else "failed", ending.why)
        if ending.status == RANK_DIED:
            self._ranks.kill()  # the others wait in vain, and whoever ordered an end waits for what they hold
        if self._dispatch.fail_all(self._loss_code(ending), ending.why):
            await self._let_answers_leave()
        await self._parents.end(ending.status, ending.why)
        if ending.departure is not None:
            await self._registration.leave(ending.departure)
        self._dispatch.stop()
        await self._ranks.reap()

    def _loss_code(self, ending: Ending) -> ErrorCode:
        if ending.status == OK:
            return "backend_unavailable"
        return "prefill_failed" if self._state.role == "prefill" else "decode_failed"

    async def _let_answers_leave(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._state.wait_idle()
        except TimeoutError:
            log.warning("answers cut", in_flight=self._state.in_flight)

    # what it tells others

    def _put(self, state: State, *, drained: bool = False) -> None:
        record = self._state.record
        if record is None:
            record = instance_record(self._startup.identity, self._ready, state)
        self._state.record = standing(record, state, drained=drained)
        identity = self._startup.identity
        own = by_node(self._startup.placement, self._ready)[0]
        self._registration.put(self._state.record, rank_records(identity.incarnation, identity.machine, own))

    def _engine(self) -> Engine:
        config = self._startup.config
        return Engine(
            state=self._state,
            texts=self._startup.texts,
            ranks=self._dispatch,
            peers=Peers(self._fleet, lambda: self._state.record, self._rooms.lookup),
            metrics=Metrics(lambda: self._dispatch.stats, self._follower.view_age_s),
            clock=self._clock,
            max_body_bytes=config.max_body_bytes,
            request_timeout_s=config.request_timeout_s,
            vocab_size=self._startup.model.vocab_size,
            serial=itertools.count(),
            choices=self._rooms.choices,
        )


def _spec(startup: Startup, runtime_dir: Path) -> RegistrarSpec:
    config, identity = startup.config, startup.identity
    return RegistrarSpec(
        store=config.store_access,
        cluster=config.cluster,
        instance_id=identity.instance_id,
        incarnation=identity.incarnation,
        role=identity.role,
        ttl_s=config.lease_ttl_s,
        take_over=config.take_over,
        log_format=config.log_format,
        log_level=config.log_level,
        runtime_dir=str(runtime_dir),
    )
