"""The parent process of an engine whose ranks are all foreign: claims its id, takes its ranks in, answers their calls.

It answers before anything else happens, so that no rank has to wait for it, and knows nothing of requests: a signal
ends it, and the instance leaves.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from pdcore import telemetry
from pdcore.beside import running_beside
from pdcore.clock import SystemClock
from pdcore.config import FacadeConfig
from pdcore.errors import ConfigError, Superseded
from pdcore.http_server import answering, listen, port_of
from pdcore.registry import machine
from pdcore.registry.connect import admitted_store
from pdcore.registry.desired import Fence
from pdcore.registry.facade.app import create_app
from pdcore.registry.facade.bodies import Shared
from pdcore.registry.facade.bootstrap import ROOM_LIFE_S, Bootstrap
from pdcore.registry.facade.foreign import ForeignIdentity, ForeignRanks, instance_record
from pdcore.registry.follower import Follower
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.registry.rooms.opening import open_reader, open_writer
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace

OK: Final = 0
SUPERSEDED: Final = 3

log = telemetry.logger(__name__)


async def run(config: FacadeConfig) -> int:
    """Until a signal, or until another start takes the id; the exit status. ConfigError for what cannot work."""
    with listen(config.host, config.bootstrap_port, "bootstrap_port") as listener, _signalled() as stop:
        identity = identity_of(config, listener)
        telemetry.configure(
            config.log_format,
            config.log_level,
            role="prefill",
            instance_id=identity.instance_id,
            incarnation=identity.incarnation,
        )
        return await _live(config, identity, listener, stop)


async def _live(
    config: FacadeConfig, identity: ForeignIdentity, listener: socket.socket, stop: asyncio.Event
) -> int:
    clock, keyspace = SystemClock(), Keyspace(cluster=config.cluster)
    fence = Fence(keyspace=keyspace, instance_id=identity.instance_id, incarnation=identity.incarnation)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(admitted_store(config.store_access, keyspace))
        follower = await stack.enter_async_context(Follower(store, keyspace, clock=clock))
        registration = await stack.enter_async_context(Registration(_spec(config, identity)))
        ranks = await stack.enter_async_context(ForeignRanks(identity, registration, clock=clock))
        writer = await stack.enter_async_context(
            open_writer(fence, store, config.redis_access, lives_s=ROOM_LIFE_S, clock=clock)
        )
        reader = await stack.enter_async_context(
            open_reader(keyspace, store, config.redis_access, clock=clock)
        )
        bootstrap = Bootstrap(
            identity.instance_id,
            identity.incarnation,
            ranks,
            lambda: follower.topology,
            writer,
            reader,
        )
        await stack.enter_async_context(answering(create_app(bootstrap), listener))
        log.info("bootstrap listening", host=config.host, bootstrap_port=identity.bootstrap_port)
        return await _until_over(registration, stop)


async def _until_over(registration: Registration, stop: asyncio.Event) -> int:
    """Claim, then wait for what ends this process. Raises ConfigError when the id may not be claimed."""
    trouble: ConfigError | Superseded | None = None

    async def keep_claim() -> None:
        nonlocal trouble
        try:
            await registration.claim()
            log.info("instance claimed")
            trouble = await registration.wait_superseded()
        except (ConfigError, Superseded) as refused:
            trouble = refused
        stop.set()

    async with running_beside(keep_claim()):
        await stop.wait()
    if isinstance(trouble, ConfigError):
        raise trouble
    log.info("ending", reason="told to end" if trouble is None else str(trouble))
    return OK if trouble is None else SUPERSEDED


def identity_of(config: FacadeConfig, listener: socket.socket) -> ForeignIdentity:
    """Who this process stands for. ConfigError when no record can say so."""
    port = port_of(listener)
    identity = ForeignIdentity(
        instance_id=config.instance_id or f"prefill-{config.host}-{port}",
        incarnation=secrets.token_hex(8),
        models=(config.model_name,),
        url=config.url,
        host=config.host,
        bootstrap_port=port,
        context_length=config.context_length,
        machine=machine.machine(),
        boot_id=machine.boot_id(),
        pid=os.getpid(),
    )
    smallest = Shared(
        tp_size=1, cp_size=1, dp_size=1, block_sizes=(1,), kv_cache_dtype="any", max_prefill_tokens=None
    )
    value = codec.encode(instance_record(identity, smallest, "starting"))
    read = codec.decode(keys.instance(identity.instance_id), value)
    if isinstance(read, codec.Rejected):
        raise ConfigError(f"this instance cannot be registered: {read.reason}")
    return identity


def _spec(config: FacadeConfig, identity: ForeignIdentity) -> RegistrarSpec:
    return RegistrarSpec(
        store=config.store_access,
        cluster=config.cluster,
        instance_id=identity.instance_id,
        incarnation=identity.incarnation,
        role="prefill",
        ttl_s=config.lease_ttl_s,
        take_over=config.take_over,
        log_format=config.log_format,
        log_level=config.log_level,
    )


@contextmanager
def _signalled() -> Iterator[asyncio.Event]:
    """An event set by the first signal that asks for the end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
