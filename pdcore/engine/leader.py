"""The life of a leader process, from its claim to its exit status.

    claim the instance id → start ranks → all ready → register → serve → drain → leave

Whatever ends it is an :class:`Ending`, reported by the task that watches for it; the first one counts. HTTP answers
during the whole life. Nothing here computes: text is :mod:`pdcore.engine.generation`, tokens are the ranks'.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

from starlette.types import ASGIApp

from pdcore import telemetry
from pdcore.clock import Clock, SystemClock
from pdcore.config import EngineConfig
from pdcore.engine.app import create_app
from pdcore.engine.bootstrap import bootstrap_app, rooms_of
from pdcore.engine.door import Door
from pdcore.engine.ending import OK, RANK_DIED, REFUSED, SUPERSEDED, TERMINATED, Ending
from pdcore.engine.engine import Engine
from pdcore.engine.metrics import Metrics
from pdcore.engine.obedience import Deeds, Obedience
from pdcore.engine.own_instance import OwnInstance
from pdcore.engine.peers import Peers
from pdcore.engine.process import beside, runtime_directory, signals
from pdcore.engine.rank_process import RANK_COMMAND
from pdcore.engine.records import instance_record, rank_records, standing
from pdcore.engine.startup import Startup, starting
from pdcore.engine.state import LeaderState
from pdcore.engine.wishes import Wishes
from pdcore.errors import ConfigError, ErrorCode, Superseded
from pdcore.http_server import answering
from pdcore.registry.connect import admitted_store
from pdcore.registry.follower import Follower
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import Role, State
from pdcore.watched_files import watch

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
    """Enter it to answer HTTP; :meth:`live` does the rest. Mutable: ``_endings``, ``_instance``."""

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
        self._told_to_drain = asyncio.Event()
        self._instance = OwnInstance(startup, runtime_dir, rank_command, clock)
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
            self._store = store
            await stack.enter_async_context(self._instance)
            self._dispatch, self._state.word = self._instance.dispatch, self._instance.word
            self._rooms = await stack.enter_async_context(rooms_of(startup, store, self._clock))
            await stack.enter_async_context(answering(await self._app(stack), startup.listener))
            if startup.bootstrap is not None:
                bootstrap = bootstrap_app(self._state, lambda: self._follower.topology, self._rooms)
                await stack.enter_async_context(answering(bootstrap, startup.bootstrap))
            self._open = stack.pop_all()
        log.info("leader listening", url=startup.identity.url, bootstrap_port=startup.identity.bootstrap_port)
        return self

    async def _app(self, stack: AsyncExitStack) -> ASGIApp:
        """What answers HTTP, behind the token if there is one; its file is looked at as long as ``stack`` is open."""
        app, token = create_app(self._engine()), self._startup.token
        if token is None:
            return app
        await stack.enter_async_context(beside(watch((token,), self._clock)))
        return Door(app, lambda: token.value)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def live(self) -> int:
        """Come up, serve, and go down in order; the exit status. ConfigError when this instance cannot be."""
        async with signals(self._on_signal), beside(self._watch_claim(), self._come_up()):
            ending = await self._endings.get()
            if ending.drains:
                ending = await self._drain(ending)
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
            await self._instance.start(self._registration, self._store)
            async with beside(*self._watches(), self._instance.announce(self._store), self._wishes().run()):
                await self._serve()
                obedience = self._obedience()
                async with beside(self._drain_when_told(obedience)):
                    await obedience.run()
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
            await self._instance.wait_ready()
        self._put("starting")
        self._instance.register_others()
        async with beside(self._say_while_waiting("registering")):
            await self._wait_registered()
            await self._instance.parents.wait_registered()
        record = self._state.record
        assert record is not None
        self._state.context_length = record.compat.context_length
        self._state.kv_tokens = min(rank.kv_tokens for rank in self._instance.ready.values())
        self._state.dp_size = record.dp_size
        gc.collect()  # what is here stays: nobody is answered while it is looked through once more
        gc.freeze()
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
            if machines := self._instance.parents.missing:
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

    async def _drain_when_told(self, obedience: Obedience) -> None:
        """By ``/drain``: as by an order, and until an order says otherwise."""
        while True:
            await self._told_to_drain.wait()
            self._told_to_drain.clear()
            await obedience.drain_now("told to drain over HTTP")

    def _watches(self) -> Iterator[Coroutine[object, object, None]]:
        instance = self._instance
        for ending in (
            instance.watch_ranks(),
            instance.watch_parents(),
            instance.watch_departure(self._follower),
        ):
            yield self._end_with(ending)

    async def _end_with(self, watch: Coroutine[object, object, Ending]) -> None:
        self._end(await watch)

    def _wishes(self) -> Wishes:
        identity, config = self._startup.identity, self._startup.config
        return Wishes(
            store=self._store,
            keyspace=Keyspace(cluster=config.cluster),
            clock=self._clock,
            by=f"{identity.instance_id} on {identity.machine}",
            next_wish=self._dispatch.next_wish,
            restart=lambda why: self._end(
                Ending(status=RANK_DIED, why=why, departure="drained", drains=True)
            ),
        )

    def _on_signal(self, number: signal.Signals, times: int) -> None:
        log.info("signal received", signal=number.name, times=times)
        if times == 1:
            self._end(TERMINATED)
            return
        self._instance.ranks.kill()
        shutil.rmtree(self._runtime_dir, ignore_errors=True)
        os._exit(128 + number)

    def _end(self, ending: Ending) -> None:
        self._endings.put_nowait(ending)

    # going down

    async def _drain(self, then: Ending) -> Ending:
        """Refuse new requests, let those in flight finish; what ended that."""
        if self._state.phase not in ("serving", "draining"):
            return then
        idle = replace(then, departure="drained") if self._state.phase == "draining" else then
        self._state.enter("draining", then.why)
        self._put("draining")
        log.info("leader draining", in_flight=self._state.in_flight)
        async with beside(self._report_idle(idle)):
            try:
                async with asyncio.timeout(self._startup.config.drain_timeout_s):
                    return await self._endings.get()
            except TimeoutError:
                log.warning("drain timed out", in_flight=self._state.in_flight)
                return then

    async def _report_idle(self, idle: Ending) -> None:
        await self._state.wait_idle()
        self._end(idle)

    async def _go_down(self, ending: Ending) -> None:
        say = log.info if ending.status in (OK, REFUSED) else log.error
        say("leader ending", reason=ending.why, status=ending.status)
        self._state.enter("draining" if ending.status == OK else "failed", ending.why)
        if ending.status == RANK_DIED:
            self._instance.ranks.kill()  # the others wait in vain, and whoever ordered an end waits for what they hold
        if self._dispatch.fail_all(self._loss_code(ending), ending.why):
            await self._let_answers_leave()
        if ending.status == RANK_DIED:
            await self._instance.end(ending)  # before the store is told, which may be away
        if ending.departure is not None:
            await self._registration.leave(ending.departure)
        if ending.status != RANK_DIED:
            await self._instance.end(ending)
        await self._instance.stop()

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
            record = instance_record(self._startup.identity, self._instance.ready, state)
        self._state.record = standing(record, state, drained=drained)
        identity = self._startup.identity
        ranks = rank_records(identity.incarnation, identity.machine, self._instance.own_ready)
        self._registration.put(self._state.record, ranks)

    def _engine(self) -> Engine:
        config = self._startup.config
        return Engine(
            state=self._state,
            texts=self._startup.texts,
            ranks=self._dispatch,
            peers=Peers(self._fleet, lambda: self._state.record, self._rooms.lookup),
            metrics=Metrics(lambda: self._dispatch.stats, self._follower.view_age_s),
            load=self._instance.load,
            clock=self._clock,
            max_body_bytes=config.max_body_bytes,
            request_timeout_s=config.request_timeout_s,
            vocab_size=self._startup.model.vocab_size,
            serial=itertools.count(),
            choices=self._rooms.choices,
            trouble=self._instance.trouble,
            drain=self._told_to_drain.set,
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
