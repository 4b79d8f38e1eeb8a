"""`pdcore up` without its command line: a cluster that lives while a body runs, ended in order by every way out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TextIO

from pdcore import telemetry
from pdcore.clock import SystemClock
from pdcore.config import StoreAccess, UpConfig
from pdcore.errors import ConfigError
from pdcore.group.launch import embedded_etcd
from pdcore.group.launch.child import Grace
from pdcore.group.launch.cluster import Launcher, LocalCluster
from pdcore.group.launch.embedded_etcd import EmbeddedEtcd
from pdcore.group.launch.local import MemberGaveUp, Supervisor
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.members import ROUTER_NAME, ClusterPlan

Body = Callable[[LocalCluster, PrefixedLog], Awaitable[int]]
"""What happens while the cluster runs; its result is the exit status."""

BEYOND_DRAIN_S: Final = 5.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(config: UpConfig, out: TextIO, body: Body, *, on_signal: int = 0) -> int:
    """Bring the cluster up, run ``body``, end everything. Returns the exit status: ``on_signal`` after a signal.

    Raises :class:`ConfigError` for what cannot work, a member's own words included.
    """
    plan = plan_of(config)
    _check_login(config)
    if not config.model.is_dir():
        raise ConfigError(f"--model / PDCORE_MODEL: {config.model} is no directory")
    # What the supervisor's own follower meets is said in the log's words; only what is broken may speak for itself.
    telemetry.configure(config.log_format, "error", role="supervisor")
    log = PrefixedLog(out, (embedded_etcd.NAME, *plan.instance_ids, ROUTER_NAME))
    if config.store is not None:
        return asyncio.run(
            _until_ended(config, plan, None, config.access_to(config.store), log, body, on_signal)
        )
    with embedded_etcd.prepared(config.etcd_port, config.data_dir) as etcd:
        return asyncio.run(
            _until_ended(
                config,
                plan,
                etcd,
                StoreAccess(url=etcd.store, timeout_s=config.store_timeout_s),
                log,
                body,
                on_signal,
            )
        )


def _check_login(config: UpConfig) -> None:
    """The etcd that is started here asks nobody for a login, and refuses one."""
    given = (config.store_user, config.store_password, config.store_ca, config.store_cert, config.store_key)
    if config.store is None and any(value is not None for value in given):
        raise ConfigError("a user, password or certificate for the store is of no use without --store")


def plan_of(config: UpConfig) -> ClusterPlan:
    """The members that ``config`` asks for; ConfigError when no request could ever be served by them."""
    if not (config.prefill and config.decode) and not config.unified:
        raise ConfigError("--prefill and --decode must both be at least 1, or --unified must be")
    return ClusterPlan(
        cluster=config.cluster,
        model=config.model,
        model_name=config.model_name,
        replicas=(("prefill", config.prefill), ("decode", config.decode), ("unified", config.unified)),
        port=config.port,
        torch_threads=config.torch_threads
        or threads_each(os.cpu_count() or 1, config.prefill + config.decode + config.unified),
        drain_timeout_s=config.drain_timeout_s,
        log_format=config.log_format,
        log_level=config.log_level,
        redis=config.redis_access,
    )


def threads_each(cores: int, instances: int) -> int:
    """How many of ``cores`` each instance gets: ranks that share a core wait for each other at every operation."""
    return max(1, cores // instances)


async def _until_ended(
    config: UpConfig,
    plan: ClusterPlan,
    etcd: EmbeddedEtcd | None,
    access: StoreAccess,
    log: PrefixedLog,
    body: Body,
    on_signal: int,
) -> int:
    clock, hurry = SystemClock(), asyncio.Event()
    supervisor = Supervisor(log, Grace(config.drain_timeout_s + BEYOND_DRAIN_S, hurry), clock)
    launcher = Launcher(supervisor, log, clock)
    try:
        with as_config_error():
            async with (
                signals_cancel(log, hurry) as received,
                launcher.running(plan, etcd, access) as cluster,
            ):
                try:
                    return await body(cluster, log)
                finally:
                    log.say("ending every member")
    except asyncio.CancelledError:
        if not received:
            raise
        return on_signal


@contextmanager
def as_config_error() -> Iterator[None]:
    """A member that gave up ends everything with its own words."""
    try:
        yield
    except BaseExceptionGroup as group:
        gave_up = _first_gave_up(group)
        if gave_up is None:
            raise
        raise ConfigError(str(gave_up)) from group


@asynccontextmanager
async def signals_cancel(log: PrefixedLog, hurry: asyncio.Event) -> AsyncIterator[list[signal.Signals]]:
    """The first signal cancels this task, so that everything ends in order; another one ends all patience."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            hurry.set()
            return
        log.say(f"{number.name}: ending (once more to end at once)")
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield received
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _first_gave_up(error: BaseException) -> MemberGaveUp | None:
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _first_gave_up(inner))), None)
    return error if isinstance(error, MemberGaveUp) else None
