"""Keeps the keyspace in memory true to the engines at fixed addresses: asks each every second, adds and removes them.

This is the only writer of that keyspace besides the router's own registration; everybody else follows it as any other.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from pdcore.beside import running_beside
from pdcore.clock import Clock
from pdcore.config import RouterConfig
from pdcore.config.targets import Target, TargetRole
from pdcore.registry.connect import admitted_store
from pdcore.registry.instance_keys import DEPARTURE_TTL_S
from pdcore.registry.memory import MemoryStore
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.overlay.suspect import InstanceKey, Note
from pdcore.registry.probe import UNNAMED
from pdcore.registry.store import Delete, Put, Store
from pdcore.router.fixed.asking import hear, models_of
from pdcore.router.fixed.record import bootstrap_port, names, records
from pdcore.router.fixed.standing import Answers, Fails, Heard, Silent, Standing
from pdcore.telemetry import logger
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.pairing import PARTNERS
from pdcore.topology.records import DepartureRecord

PERIOD_S: Final = 1.0
AT_ONCE: Final = 32
MOST: Final = 1024

_log = logger(__name__)


class TooMany(Exception):
    """As many engines as may be are there already."""


class FixedFleet:
    """The engines of one router. Mutable: ``_targets`` and ``_standings``, by instance id, changed before each write to
    the store, and ``_lost``: which incarnations the overlay has found gone meanwhile and why, to be written by the loop."""

    def __init__(
        self,
        store: Store,
        keyspace: Keyspace,
        fleet: Fleet,
        *,
        protocol: str,
        timeout_s: float,
        clock: Clock,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._store = store
        self._view = keyspace.view
        self._fleet = fleet
        self._protocol = protocol
        self._timeout_s = timeout_s
        self._clock = clock
        self._headers = headers
        self._tls = tls
        self._targets: dict[str, Target] = {}
        self._standings: dict[str, Standing] = {}
        self._lost: dict[InstanceKey, str] = {}
        self._woken = asyncio.Event()

    @property
    def targets(self) -> Mapping[str, Target]:
        """Every engine by its instance id."""
        return self._targets

    def standing(self, instance_id: str) -> Standing:
        """What is known of one of them."""
        return self._standings[instance_id]

    def bootstrap_port(self, instance_id: str) -> int | None:
        """Where a prefill engine takes handshakes, as far as it was said."""
        return bootstrap_port(self._targets[instance_id], self._protocol)

    async def add(self, target: Target) -> str:
        """Take ``target`` in, to be asked at once; the same address and role again changes only its bootstrap port.

        Returns its instance id. Raises :class:`TooMany`.
        """
        name = target.instance_id
        if name not in self._targets and len(self._targets) >= MOST:
            raise TooMany(f"there are {MOST} engines already")
        self._targets[name] = target
        self._standings.setdefault(name, Standing(incarnation=_fresh()))
        await self._write(name)
        self._woken.set()
        return name

    async def remove(self, instance_id: str) -> bool:
        """Give it no new requests; those it has may end. False when there is none."""
        if self._targets.pop(instance_id, None) is None:
            return False
        standing = self._standings.pop(instance_id)
        departed = DepartureRecord(incarnation=standing.incarnation, reason="left", by="removed")
        lease = await self._store.grant(DEPARTURE_TTL_S)
        why = Put(self._view + keys.departure(instance_id), codec.encode(departed), lease)
        await self._store.commit((), (why, *(Delete(self._view + key) for key in names(instance_id))))
        return True

    def on_note(self, note: Note) -> None:
        """The overlay asked one of them and knows that its process is no more."""
        if note.kind == "gone":
            self._lost[note.key] = note.why
            self._woken.set()

    async def watch(self) -> None:
        """For ever: every engine once in a period, sooner who is new or whom something was found out about."""
        due = self._clock.now()
        while True:
            self._woken.clear()
            await self._write_lost()
            if self._clock.now() >= due:
                due = self._clock.now() + PERIOD_S
                await self._ask_each(tuple(self._targets))
            else:
                await self._ask_each([name for name, one in self._standings.items() if not one.is_up])
            await self._pause(due - self._clock.now())

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _write_lost(self) -> None:
        while self._lost:
            (name, incarnation), why = self._lost.popitem()
            standing = self._standings.get(name)
            if standing is not None and standing.incarnation == incarnation:
                await self._heard(name, Fails(why=why))

    async def _ask_each(self, instance_ids: list[str] | tuple[str, ...]) -> None:
        few = asyncio.Semaphore(AT_ONCE)

        async def ask(name: str) -> None:
            async with few:
                await self._ask(name)

        async with asyncio.TaskGroup() as group:
            for name in instance_ids:
                group.create_task(ask(name))

    async def _ask(self, name: str) -> None:
        target, before = self._targets.get(name), self._standings.get(name)
        if target is None or before is None:
            return
        found = await hear(target.url, self._timeout_s, self._tls)
        if isinstance(found, Silent) and before.is_up:
            self._fleet.accuse((name, before.incarnation), "silence")
        elif isinstance(found, Answers) and not (
            before.knows_models and before.after(found, _fresh) is before
        ):
            models = await models_of(target.url, self._timeout_s, self._headers(), self._tls)
            found = Answers(incarnation=found.incarnation, models=models)
        await self._heard(name, found)

    async def _heard(self, name: str, heard: Heard) -> None:
        before = self._standings.get(name)
        if before is None:
            return  # removed meanwhile
        after = before.after(heard, _fresh)
        if after is before:
            return
        self._standings[name] = after
        if after.is_up != before.is_up or not after.is_up:
            say = _log.info if after.is_up else _log.warning
            say("engine is up" if after.is_up else "engine is down", instance_id=name, reason=after.why)
        if _shown(after) != _shown(before):
            await self._write(name)

    async def _write(self, name: str) -> None:
        made = records(self._targets[name], self._standings[name], self._protocol)
        await self._store.commit(
            (), tuple(Put(self._view + key, codec.encode(record)) for key, record in made.items())
        )


def _shown(standing: Standing) -> tuple[object, ...]:
    """What the keyspace shows of it."""
    return standing.incarnation, standing.is_up, standing.models


def _fresh() -> str:
    return f"{UNNAMED}{secrets.token_hex(6)}"


@asynccontextmanager
async def keyspace_of(config: RouterConfig, keyspace: Keyspace) -> AsyncIterator[Store]:
    """The router's store, open: the one it is told, or one in memory when it is told engines instead."""
    async with MemoryStore() if config.targets else admitted_store(config.store_access, keyspace) as store:
        yield store


def store_shown(config: RouterConfig) -> str:
    """Where the keyspace is, for people."""
    return "memory" if config.targets else config.store


def fixed_fleet(
    config: RouterConfig,
    store: Store,
    fleet: Fleet,
    clock: Clock,
    headers: Callable[[], Mapping[str, str]],
    tls: ssl.SSLContext | None = None,
) -> FixedFleet | None:
    """For a router that was told engines, which know it by ``headers`` and it by ``tls``; None for any other."""
    if not config.targets:
        return None
    return FixedFleet(
        store,
        Keyspace(cluster=config.cluster),
        fleet,
        protocol=config.protocol,
        timeout_s=config.probe_timeout_s,
        clock=clock,
        headers=headers,
        tls=tls,
    )


def _warn_of_half_a_pair(roles: Collection[TargetRole]) -> None:
    for given, missing in PARTNERS.items():
        if given in roles and missing not in roles:
            what_helps = f"--{missing}, or POST /workers"
            _log.warning(
                "engines of one role pair with nobody", given=given, missing=missing, setting=what_helps
            )


@asynccontextmanager
async def tended(fixed: FixedFleet | None, fleet: Fleet, targets: Collection[Target]) -> AsyncIterator[None]:
    """Inside the block ``targets`` are in, and everybody is asked. ``fleet`` is open, and the one of ``fixed``."""
    if fixed is None:
        yield
        return
    for target in targets:
        await fixed.add(target)
    _warn_of_half_a_pair({target.role for target in targets})
    async with AsyncExitStack() as stack:
        stack.callback(fleet.subscribe(lambda: None, fixed.on_note))
        await stack.enter_async_context(running_beside(fixed.watch()))
        yield
