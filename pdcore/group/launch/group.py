"""`pdcore up GROUP.yaml` without its command line: one group kept up on this machine until a signal.

Several machines, or several supervisors on one, may do the same for the same group: each keeps the members whose slots
it got first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, TextIO

import httpx

from pdcore import __version__, telemetry
from pdcore.beside import running_beside
from pdcore.clock import Clock, SystemClock
from pdcore.config import StoreAccess, UpConfig
from pdcore.config.member_network import PortRange
from pdcore.errors import AccessRefused, ConfigError, StoreError
from pdcore.group.control import status
from pdcore.group.control.applying import Applied, apply
from pdcore.group.control.asking import Asking
from pdcore.group.control.controller import Controller
from pdcore.group.control.following import GroupFollower
from pdcore.group.control.members import ENGINE_ROLES
from pdcore.group.control.writing import GroupWriter
from pdcore.group.launch import embedded_etcd
from pdcore.group.launch.child import Grace
from pdcore.group.launch.embedded_etcd import EmbeddedEtcd
from pdcore.group.launch.group_processes import NATIVE, Here, Processes
from pdcore.group.launch.keeper import Keeper
from pdcore.group.launch.local import Supervisor
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.up import BEYOND_DRAIN_S, as_config_error, signals_cancel, threads_each
from pdcore.group.ports.holding import HeldPorts
from pdcore.group.spec import DEFAULT_SERVICE_PORTS, GroupSpec
from pdcore.registry import machine
from pdcore.registry.connect import admitted_store
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

Asks = Callable[[], httpx.AsyncClient]
STORE_ANSWERS_S: Final = 30.0
RETRY_S: Final = 0.1
TELL_S: Final = 1.0
NEEDS_AGENT: Final = (
    "engines of mode {mode} need an agent on their machines, which is not there yet; "
    "pdcore group show --effective prints what would run"
)


def supervise_group(config: UpConfig, spec: GroupSpec, out: TextIO, asks: Asks) -> int:
    """Keep the group up until a signal. Returns the exit status. ConfigError for what cannot work.

    ``asks`` makes the client by which routers are asked.
    """
    if spec.mode not in (NATIVE, "custom"):
        raise ConfigError(NEEDS_AGENT.format(mode=spec.mode))
    telemetry.configure(config.log_format, "error", role="supervisor")
    log = PrefixedLog(out, (embedded_etcd.NAME, f"{spec.name}-1-prefill-1", f"{spec.name}-router-1"))
    if config.store is not None:
        return asyncio.run(_until_ended(config, spec, None, config.access_to(config.store), log, asks))
    with embedded_etcd.prepared(config.etcd_port, config.data_dir) as etcd:
        access = StoreAccess(url=etcd.store, timeout_s=config.store_timeout_s)
        return asyncio.run(_until_ended(config, spec, etcd, access, log, asks))


async def _until_ended(
    config: UpConfig,
    spec: GroupSpec,
    etcd: EmbeddedEtcd | None,
    access: StoreAccess,
    log: PrefixedLog,
    asks: Asks,
) -> int:
    hurry = asyncio.Event()
    with as_config_error():
        try:
            async with (
                signals_cancel(log, hurry) as received,
                _kept_up(config, spec, etcd, access, log, hurry, asks),
            ):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not received:
                raise
    return 0


@asynccontextmanager
async def _kept_up(
    config: UpConfig,
    spec: GroupSpec,
    etcd: EmbeddedEtcd | None,
    access: StoreAccess,
    log: PrefixedLog,
    hurry: asyncio.Event,
    asks: Asks,
) -> AsyncIterator[None]:
    clock, keyspace = SystemClock(), Keyspace(cluster=config.cluster)
    grace = Grace(config.drain_timeout_s + BEYOND_DRAIN_S, hurry)
    async with AsyncExitStack() as opened:
        if etcd is not None:
            log.say(f"etcd listens on {access.url}, its data is in {etcd.data_dir}")
            await opened.enter_async_context(Supervisor(log, grace, clock).keeping([etcd.member()]))
        store = await opened.enter_async_context(admitted_store(access, keyspace))
        _tell_applied(log, spec, await _applied(store, keyspace, spec, clock))
        follower = GroupFollower(store, keyspace, spec.name, clock)
        client = await opened.enter_async_context(asks())
        await opened.enter_async_context(follower.following())
        ports = opened.enter_context(HeldPorts(_port_range(config, spec)))
        processes = Processes(_here(config, spec, access), ports)
        writer = GroupWriter(store, keyspace, spec.name)
        keeper = Keeper(_name(), store, writer, follower, processes, log, grace, clock)
        controller = Controller(store, keyspace, follower, Asking(client), log.say)
        await opened.enter_async_context(keeper.keeping())
        await opened.enter_async_context(running_beside(controller.control()))
        await opened.enter_async_context(running_beside(_tell_states(follower, log, access)))
        try:
            yield
        finally:
            log.say("ending every member that runs here")


async def _applied(store: Store, keyspace: Keyspace, spec: GroupSpec, clock: Clock) -> Applied:
    """Save the spec of a group that is new, giving a store that has just been started the moment it needs."""
    deadline = clock.now() + STORE_ANSWERS_S
    while True:
        try:
            return await apply(store, keyspace, spec, only_new=True)
        except AccessRefused:
            raise
        except StoreError:
            if clock.now() >= deadline:
                raise
            await clock.sleep(RETRY_S)


def _tell_applied(log: PrefixedLog, spec: GroupSpec, applied: Applied) -> None:
    if applied.created:
        log.say(f"group {spec.name} is new; generation 1 starts")
    elif applied.changed:
        log.say(
            f"group {spec.name} runs generation {applied.running} of what was saved before, which this file is not; "
            "pdcore group apply saves the file"
        )
    else:
        log.say(f"group {spec.name} runs generation {applied.running}")


async def _tell_states(follower: GroupFollower, log: PrefixedLog, access: StoreAccess) -> None:
    """Say the group's state whenever it is another one, and where clients ask."""
    said, told, changed = "", set[str](), asyncio.Event()
    follower.view.observe(lambda _: changed.set())
    while True:
        changed.clear()
        seen = follower.seen()
        if seen is not None:
            shown = status.status_of(seen, __version__, {}, kept=True)
            line = status.headline(shown)
            if line != said:
                said = line
                log.say(line)
            urls = set(status.endpoints(seen.group, seen.plan, seen.topology))
            for url in sorted(urls - told):
                log.say(f"router: {url}   store: {access.url}")
            told = urls
        with suppress(TimeoutError):  # slots, which are not in the view, tell of members that do not register
            async with asyncio.timeout(TELL_S):
                await changed.wait()


def _port_range(config: UpConfig, spec: GroupSpec) -> PortRange:
    """What this machine says before what the group does."""
    written = spec.network.service_port_range or DEFAULT_SERVICE_PORTS
    return config.service_port_range or PortRange.parse(written)


def _here(config: UpConfig, spec: GroupSpec, access: StoreAccess) -> Here:
    engines = sum(spec.replicas.get(role, 0) for role in ENGINE_ROLES)
    return Here(
        cluster=config.cluster,
        access=access,
        port=config.port,
        torch_threads=config.torch_threads or threads_each(os.cpu_count() or 1, max(1, engines)),
        drain_timeout_s=config.drain_timeout_s,
        log_format=config.log_format,
        log_level=config.log_level,
        net_device=config.kv_transfer_ifname,
    )


def _name() -> str:
    return f"{machine.machine()}-{os.getpid()}"
