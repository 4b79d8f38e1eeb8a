"""The router's process: what is open for as long as it runs, and how it ends.

The first signal drains: not ready, new requests refused, requests in flight finish up to the drain budget, the rest
get an error. A second signal exits at once; what is left then ends with the process and its lease.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pdcore import __version__, telemetry
from pdcore.beside import running_beside
from pdcore.clock import SystemClock
from pdcore.config import RouterConfig
from pdcore.http_server import answering, port_of, url_of
from pdcore.registry.follower import Follower
from pdcore.registry.journal.running import writing_journal
from pdcore.registry.overlay import cache
from pdcore.registry.ring import Ring, remembering
from pdcore.registry.router_registration import RouterRegistration
from pdcore.router import wire_connection
from pdcore.router.app import build_app, build_operators_app
from pdcore.router.assembly import assemble, watch_for_silence, watch_the_journal, watching_the_fleet
from pdcore.router.credentials import read_credentials
from pdcore.router.doors import engines_door, operators_door, warn_of_open_doors
from pdcore.router.fixed.fleet import keyspace_of, store_shown, tended
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.wire_server import ServerConnection
from pdcore.router.wire_upstream import WireUpstream
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import RouterRecord
from pdcore.watched_files import watch

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
LAST_WORDS_S: Final = 2.0  # for the error events of requests that the drain cut short
EXIT_NOW: Final = 1

_log = telemetry.logger(__name__)


def _running(config: RouterConfig) -> dict[str, object]:
    """On what: its store, and whether the request path is compiled."""
    return {"store": store_shown(config), "compiled": not wire_connection.__file__.endswith(".py")}


async def run(config: RouterConfig, listener: socket.socket) -> None:
    """Serve on ``listener`` until a signal, then drain. Raises ConfigError for a store URL or a port that cannot work."""
    clock, keyspace = SystemClock(), Keyspace(cluster=config.cluster)
    credentials = read_credentials(config)
    warn_of_open_doors(config, credentials)
    router_id = router_id_of(config, listener)
    url = url_of(config.host, listener, tls=credentials.tls is not None)
    lifecycle = Lifecycle(max_in_flight=config.max_in_flight)
    upstream = WireUpstream(connect_timeout_s=config.connect_timeout_s, tls=credentials.engine_tls)
    cached = None if config.view_cache is None else cache.read(config.view_cache, config.cluster)
    with _signalled() as stop:
        async with (
            keyspace_of(config, keyspace) as store,
            Follower(store, keyspace, clock=clock) as follower,
            upstream,
            engines_door(config) as reached,
            RouterRegistration(store, keyspace, router_id, ttl_s=config.lease_ttl_s, clock=clock) as place,
        ):
            serving = assemble(
                config,
                store=store,
                follower=follower,
                upstream=upstream,
                contacts=reached,
                clock=clock,
                lease=lambda: place.lease,
                cached=cached,
                access=credentials.access,
                engine_tls=credentials.engine_tls,
            )
            serving.ground.metrics.watch(
                "unread_files", "Files of keys that changed and cannot be read.", credentials.unread
            )
            ring = Ring()
            app = build_app(router_id=router_id, serving=serving, lifecycle=lifecycle, ring=ring)
            operators = build_operators_app(
                router_id=router_id, serving=serving, lifecycle=lifecycle, ring=ring
            )
            with watching_the_fleet(serving, lifecycle), remembering(follower, ring, clock):
                async with (
                    serving.fleet,
                    cache.keeping(config.view_cache, follower, config.cluster, clock),
                    tended(serving.fixed, serving.fleet, config.targets),
                    running_beside(watch_for_silence(serving)),
                    writing_journal(config.redis_access, store, keyspace, clock) as journal,
                    running_beside(watch(credentials.files, clock)),
                    operators_door(config, credentials, operators) as admin_url,
                    answering(app, listener, credentials.tls, ServerConnection),
                ):
                    if journal is not None:
                        watch_the_journal(serving, journal)
                    place.put(RouterRecord(url=url, admin_url=admin_url or url, version=__version__))
                    _log.info("router listens", url=url, cluster=config.cluster, **_running(config))
                    await stop.wait()
                    await _drain(lifecycle, config.drain_timeout_s)


async def _drain(lifecycle: Lifecycle, timeout_s: float) -> None:
    _log.info("draining", requests=lifecycle.requests, timeout_s=timeout_s)
    if not await lifecycle.drain(timeout_s):
        _log.warning("drain ran out of time", requests=lifecycle.requests)
        await lifecycle.wait_idle(LAST_WORDS_S)
    _log.info("drained", requests=lifecycle.requests)


@contextmanager
def _signalled() -> Iterator[asyncio.Event]:
    """An event set by the first signal; the second one ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            _log.warning("second signal: exiting now")
            os._exit(EXIT_NOW)
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def router_id_of(config: RouterConfig, listener: socket.socket) -> str:
    """The configured id, or one made of the address."""
    return config.router_id or f"router-{config.host}-{port_of(listener)}"
