"""The parent on another machine of an instance: finds the leader, runs this machine's ranks, ends with either.

It answers no HTTP and decides nothing. Its registrar registers its ranks under the leader's claim, in one transaction,
once all ranks of the instance are ready. Whatever ends it ends its ranks; whatever ends one of its ranks ends the
instance, because the leader hears of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpx

from pdcore import telemetry
from pdcore.clock import Clock, SystemClock
from pdcore.config import EngineConfig
from pdcore.engine.departure import has_departed, wait_until
from pdcore.engine.door import token_file
from pdcore.engine.ending import OK, RANK_DIED, REFUSED, SUPERSEDED, Ending
from pdcore.engine.local_ranks import LocalRanks, Machine, how, with_memfabric_store
from pdcore.engine.own_instance import SILENT_TTLS
from pdcore.engine.parents import Ended, LeaderLine, ParentLost
from pdcore.engine.placement import Placement
from pdcore.engine.process import beside, runtime_directory, signals
from pdcore.engine.rank_process import RANK_COMMAND
from pdcore.engine.records import rank_records
from pdcore.engine.startup import placement_of, shape_of
from pdcore.errors import ConfigError, StoreError
from pdcore.registry import machine as this_machine
from pdcore.registry.connect import admitted_store
from pdcore.registry.follower import Follower
from pdcore.registry.leaders import LeaderWord, MalformedWord, find, read
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace, RankPosition
from pdcore.topology.records import DepartureReason

LOOK_EVERY_S: Final = 0.5
SAY_EVERY_S: Final = 5.0
ASK_S: Final = 2.0

log = telemetry.logger(__name__)


async def run(
    config: EngineConfig, *, rank_command: Sequence[str] = RANK_COMMAND, clock: Clock | None = None
) -> int:
    """Be a follower parent until something ends it; the exit status. ConfigError for what cannot work."""
    placement = placement_of(config)
    assert config.instance_id is not None, "several machines need an id"
    telemetry.configure(config.log_format, config.log_level, role=config.role, instance_id=config.instance_id)
    with runtime_directory() as runtime_dir:
        follower = FollowerParent(config, placement, runtime_dir, rank_command, clock or SystemClock())
        return await follower.live()


class FollowerParent:
    """One machine's part in an instance. Mutable: ``_endings`` (the first counts)."""

    def __init__(
        self,
        config: EngineConfig,
        placement: Placement,
        runtime_dir: Path,
        rank_command: Sequence[str],
        clock: Clock,
    ) -> None:
        self._config = config
        self._placement = placement
        self._runtime_dir = runtime_dir
        self._clock = clock
        self._ranks = LocalRanks(rank_command)
        self._endings: asyncio.Queue[Ending] = asyncio.Queue()

    async def live(self) -> int:
        """Find the leader, run the ranks, end with either; the exit status. ConfigError when it cannot be."""
        async with AsyncExitStack() as stack, signals(self._on_signal):
            config, keyspace = self._config, Keyspace(cluster=self._config.cluster)
            store = await stack.enter_async_context(admitted_store(config.store_access, keyspace))
            word = await self._unless_ended(self._find_leader(store, keyspace))
            if word is None:
                return OK
            self._check(word)
            telemetry.configure(
                config.log_format,
                config.log_level,
                role=config.role,
                instance_id=config.instance_id,
                incarnation=word.incarnation,
                node=config.node_rank,
            )
            log.info("leader found", url=word.url)
            follower = await stack.enter_async_context(Follower(store, keyspace, clock=self._clock))
            registration = await stack.enter_async_context(Registration(self._registrar(word), claimed=True))
            line = await stack.enter_async_context(
                LeaderLine(
                    word.parents,
                    config.node_rank,
                    self._clock,
                    silence_s=SILENT_TTLS * config.lease_ttl_s,
                    secret=config.curve_secret,
                )
            )
            stack.enter_context(self._ranks)
            self._ranks.start(await with_memfabric_store(self._machine(word), store), registration)
            return await self._follow(word, follower, registration, line)

    async def _follow(
        self, word: LeaderWord, follower: Follower, registration: Registration, line: LeaderLine
    ) -> int:
        async with beside(
            line.beat(),
            self._watch_leader(line),
            self._watch_departure(follower, word.incarnation),
            self._watch_claim(registration),
            self._watch_ranks(),
            self._register(word, registration, line),
        ):
            ending = await self._endings.get()
            say = log.info if ending.status == OK else log.error
            say("follower ending", reason=ending.why, status=ending.status)
            await line.say(Ended(why=ending.why))
            if ending.status != OK:
                self._ranks.kill()
            if ending.departure is not None:
                await registration.leave(
                    ending.departure
                )  # before ranks end in order: their exit is no death
            await self._ranks.reap()
        return ending.status

    # finding the leader

    async def _find_leader(self, store: Store, keyspace: Keyspace) -> LeaderWord:
        """However long that takes: the leader may start later."""
        assert self._config.instance_id is not None
        waited_s, trouble = 0.0, ""
        while True:
            try:
                word = await find(store, keyspace, self._config.instance_id)
            except (StoreError, MalformedWord) as error:
                word, trouble = None, str(error)
            word = word or await self._ask(self._config.leader)
            if word is not None:
                return word
            if waited_s % SAY_EVERY_S == 0:
                log.info("waiting for the leader", instance_id=self._config.instance_id, trouble=trouble)
            await self._clock.sleep(LOOK_EVERY_S)
            waited_s += LOOK_EVERY_S

    async def _ask(self, address: str | None) -> LeaderWord | None:
        """The word from the leader itself, at the HTTP address that a person gave."""
        if address is None:
            return None
        try:
            async with httpx.AsyncClient(timeout=ASK_S, trust_env=False) as client:
                token = token_file(self._config)
                headers = {} if token is None else token.value.headers()
                answer = await client.get(f"http://{address}/leader", headers=headers)
                return read(answer.content) if answer.status_code == 200 else None
        except (httpx.HTTPError, MalformedWord) as error:
            log.debug("leader does not answer", address=address, reason=str(error))
            return None

    def _check(self, word: LeaderWord) -> None:
        mine = shape_of(self._config)
        if word.shape != mine:
            theirs, ours = set(word.shape.split()), set(mine.split())
            differ = f"{' '.join(sorted(ours - theirs))}; the leader has {' '.join(sorted(theirs - ours))}"
            raise ConfigError(f"--node-rank / PDCORE_NODE_RANK: this machine was started with {differ}")

    # what may end it

    async def _watch_leader(self, line: LeaderLine) -> None:
        try:
            end = await line.wait_end()
        except ParentLost as lost:
            self._end(RANK_DIED, str(lost), "died")
        else:
            self._end(
                end.status, f"the leader ends: {end.why}", "died" if end.status == RANK_DIED else "left"
            )

    async def _watch_departure(self, follower: Follower, incarnation: str) -> None:
        """The keyspace hears of the leader's death first."""
        name = self._config.instance_id
        assert name is not None
        topology = await wait_until(follower, lambda seen: has_departed(seen, name, incarnation))
        reason = topology.departures[name].reason
        status = OK if reason in ("left", "drained") else RANK_DIED
        self._end(status, f"the instance leaves the keyspace: {reason}", reason)

    async def _watch_claim(self, registration: Registration) -> None:
        lost = await registration.wait_superseded()
        self._end(SUPERSEDED, str(lost), None)

    async def _watch_ranks(self) -> None:
        rank, status = await self._ranks.wait_first_exit()
        if status == OK:
            return  # told to, as the leader will say in a moment
        self._end(REFUSED if status == REFUSED else RANK_DIED, f"rank {rank} {how(status)}", "died")

    def _on_signal(self, number: signal.Signals, times: int) -> None:
        log.info("signal received", signal=number.name, times=times)
        if times == 1:
            self._end(OK, "the process was told to end", "left")
            return
        self._ranks.kill()
        os._exit(128 + number)

    def _end(self, status: int, why: str, departure: DepartureReason | None) -> None:
        self._endings.put_nowait(Ending(status=status, why=why, departure=departure))

    async def _unless_ended(self, finding: Coroutine[object, object, LeaderWord]) -> LeaderWord | None:
        """What was found, or None when this process was told to end meanwhile."""
        found: asyncio.Queue[LeaderWord | None] = asyncio.Queue()

        async def find_it() -> None:
            found.put_nowait(await finding)

        async def give_up() -> None:
            await self._endings.get()
            found.put_nowait(None)

        async with beside(find_it(), give_up()):
            return await found.get()

    # what it tells others

    async def _register(self, word: LeaderWord, registration: Registration, line: LeaderLine) -> None:
        ready = {_position(name): said for name, said in (await line.wait_ready()).items()}
        registration.put(None, rank_records(word.incarnation, this_machine.machine(), ready))
        while not line.registered:
            try:
                await registration.wait_registered(SAY_EVERY_S)
                line.registered = True
            except TimeoutError:
                log.warning("waiting for the store", store_error=registration.store_error)
        log.info("ranks registered", ranks=len(ready))

    def _machine(self, word: LeaderWord) -> Machine:
        assert self._config.instance_id is not None
        return Machine(
            config=self._config,
            placement=self._placement,
            word=word,
            instance_id=self._config.instance_id,
            rank_ip=_number_of(self._config.host),
            runtime_dir=self._runtime_dir,
        )

    def _registrar(self, word: LeaderWord) -> RegistrarSpec:
        config = self._config
        assert config.instance_id is not None
        return RegistrarSpec(
            store=config.store_access,
            cluster=config.cluster,
            instance_id=config.instance_id,
            incarnation=word.incarnation,
            role=config.role,
            ttl_s=config.lease_ttl_s,
            take_over=False,
            log_format=config.log_format,
            log_level=config.log_level,
            runtime_dir=str(self._runtime_dir),
        )


def _position(name: str) -> RankPosition:
    dp, cp, tp = map(int, name.split("."))
    return RankPosition(dp, cp, tp)


def _number_of(host: str) -> str:
    """The numeric address of ``host``. ConfigError when it has none."""
    try:
        return str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as wrong:
        raise ConfigError(f"--host / PDCORE_HOST: {host!r} is no address: {wrong.strerror}") from None
