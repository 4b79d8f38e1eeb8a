"""Who died is out of every view soon although nobody asked anything, and a fleet at rest writes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from pdcore.cli.topology import read_topology
from pdcore.config import StoreAccess
from tests.cluster import figures
from tests.cluster.conftest import Fleet
from tests.support.cluster import START_S, Cluster, Engine, Router
from tests.support.etcd_cluster import revision_of
from tests.support.eventually import eventually
from tests.support.namespaces import a_machine, require_namespaces
from tests.support.network import Relay

pytestmark = [pytest.mark.cluster]

DEAD_S = 1.0
TTL_S = 5
LEASE_S = TTL_S + 2.0
IDLE_S = 60.0
ROUTERS = 10
Shown = dict[str, Any] | None
"""What a view shows of an instance."""


async def in_router(router: Router, instance_id: str) -> Shown:
    answer = await asyncio.to_thread(router.get, "/pdcore/topology")
    assert answer is not None
    shown: Shown = answer.json()["instances"].get(instance_id)
    return shown


async def in_cli(cluster: Cluster, instance_id: str) -> Shown:
    """What ``pdcore topology`` reads when it is run."""
    read = await read_topology(StoreAccess(url=cluster.store, timeout_s=3), cluster.cluster)
    instance = read.instances.get(instance_id)
    return None if instance is None else {"ready": instance.ready, "ranks": list(instance.ranks)}


async def seconds_until_all(holds: Callable[[Shown], bool], views: Iterable[Callable[[], Any]]) -> float:
    """How long it takes until every view shows it so."""
    began = time.monotonic()

    async def shown(view: Callable[[], Any]) -> None:
        async def check() -> bool:
            return holds(await view())

        await eventually(check, 2 * LEASE_S)

    async with asyncio.TaskGroup() as group:
        for view in views:
            group.create_task(shown(view))
    return time.monotonic() - began


def views_of(cluster: Cluster, engine: Engine, *routers: Router) -> list[Callable[[], Any]]:
    """Each of them asked for ``engine``."""
    asked = [partial(in_router, router, engine.instance_id) for router in routers]
    return [*asked, partial(in_cli, cluster, engine.instance_id)]


def is_out(shown: Shown) -> bool:
    return shown is None


def cannot_serve(shown: Shown) -> bool:
    return shown is None or not (shown["ranks"] or shown["ready"])


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("died", ["leader", "rank"])
async def test_a_killed_process_is_out_of_every_view_within_a_second(
    fleet: Fleet, role: str, died: str
) -> None:
    engine = fleet.prefill if role == "prefill" else fleet.decode
    views = views_of(fleet.cluster, engine, fleet.router, fleet.hasty)
    (rank,) = engine.ranks()
    if died == "rank":
        rank.kill()
    else:
        await asyncio.to_thread(engine.kill)
    took_s = await seconds_until_all(cannot_serve if died == "rank" else is_out, views)
    figures.show(f"{role} {died} killed (-9), no traffic", **{"out s": took_s})
    assert took_s < DEAD_S
    await eventually(lambda: not engine.running, 10, "the instance has ended with it")


async def test_a_machine_that_vanishes_is_out_of_every_view_soon_after_its_lease(cluster: Cluster) -> None:
    require_namespaces()
    routers = (cluster.router(), cluster.router())
    with a_machine() as machine:
        async with Relay.to(cluster.etcd.endpoint, listen=machine.host) as relay:
            engine = cluster.engine(
                "unified", "--store", f"etcd://{relay.endpoint}", "--lease-ttl-s", str(TTL_S), on=machine
            )
            for process in (engine, *routers):
                await asyncio.to_thread(process.wait_ready, START_S)
            views = views_of(cluster, engine, *routers)
            machine.cut()
            took_s = await seconds_until_all(is_out, views)
            await asyncio.to_thread(engine.kill)
    figures.show(f"machine cut off, TTL {TTL_S} s, no traffic", **{"out s": took_s})
    assert took_s < LEASE_S


async def test_ten_routers_at_rest_write_nothing(cluster: Cluster) -> None:
    for _ in range(ROUTERS):
        cluster.router()
    engine = cluster.engine("unified")
    await asyncio.to_thread(engine.wait_ready, START_S)
    await eventually(partial(everybody_is_registered, cluster), START_S, "every router registered")
    before = revision_of(cluster.etcd)
    await asyncio.sleep(IDLE_S)
    grown = revision_of(cluster.etcd) - before
    figures.show(f"{ROUTERS} routers at rest for {IDLE_S:.0f} s", revisions=grown)
    assert not grown


async def everybody_is_registered(cluster: Cluster) -> bool:
    keyspace = await asyncio.to_thread(cluster.keyspace)
    return sum(key.startswith("routers/") for key in keyspace) == ROUTERS
