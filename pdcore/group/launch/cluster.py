"""A whole cluster on this machine: store, engines, router, followed until it can take requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx

from pdcore.clock import Clock
from pdcore.config import StoreAccess
from pdcore.errors import PdcoreError
from pdcore.group.launch.embedded_etcd import EmbeddedEtcd
from pdcore.group.launch.local import Supervisor
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.members import ROUTER_NAME, ClusterPlan, engines, router
from pdcore.group.launch.readiness import waiting_for
from pdcore.registry.connect import admitted_store, open_store
from pdcore.registry.follower import Follower
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology

REMIND_S: Final = 5.0
ROUTER_POLL_S: Final = 0.05
ROUTER_ANSWER_S: Final = 3.0
ROUTER_CATCHES_UP_S: Final = 15.0


class RouterNotReady(PdcoreError):
    """Every member is up, and still the router does not take requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A cluster that runs. ``topology`` is the view in which everything was ready."""

    access: StoreAccess
    router_url: str
    topology: Topology


class Launcher:
    """Brings a :class:`ClusterPlan` up, telling its log what it waits for."""

    def __init__(self, supervisor: Supervisor, log: PrefixedLog, clock: Clock) -> None:
        self._supervisor = supervisor
        self._log = log
        self._clock = clock

    @asynccontextmanager
    async def running(
        self, plan: ClusterPlan, etcd: EmbeddedEtcd | None, access: StoreAccess
    ) -> AsyncIterator[LocalCluster]:
        """Keep the cluster up inside the block, which begins when the router takes requests.

        ``etcd`` is run as a member; None means that something answers at ``access`` already.
        """
        began = self._clock.now()
        async with AsyncExitStack() as members:
            if etcd is None:
                async with admitted_store(access, Keyspace(cluster=plan.cluster)):
                    pass  # one that lets us in, or does not answer yet, is a reason to start members
            else:
                self._log.say(f"etcd listens on {access.url}, its data is in {etcd.data_dir}")
                await members.enter_async_context(self._supervisor.keeping([etcd.member()]))
            await members.enter_async_context(self._supervisor.keeping(engines(plan, access)))
            await members.enter_async_context(self._supervisor.keeping([router(plan, access)]))
            topology = await self._wait_ready(plan, access)
            url = topology.routers[ROUTER_NAME].url
            await self._wait_router_ready(url)
            self._log.say(f"ready after {self._clock.now() - began:.1f} s")
            yield LocalCluster(access=access, router_url=url, topology=topology)

    async def _wait_ready(self, plan: ClusterPlan, access: StoreAccess) -> Topology:
        opened = open_store(access)
        async with opened, Follower(opened, Keyspace(cluster=plan.cluster), clock=self._clock) as follower:
            said: tuple[str, ...] = ()
            while True:
                waiting = waiting_for(plan.instance_ids, ROUTER_NAME, follower.topology)
                if not waiting:
                    return follower.topology
                if waiting != said or not follower.synced:
                    self._log.say(_progress(waiting, follower.last_error if not follower.synced else None))
                said = await self._wait_changed(plan, follower, waiting)

    async def _wait_changed(
        self, plan: ClusterPlan, follower: Follower, waiting: tuple[str, ...]
    ) -> tuple[str, ...]:
        """What was waited for, if that is something else now; nothing after a while, so that it is said again."""
        try:
            await follower.wait_until(
                lambda topology: waiting_for(plan.instance_ids, ROUTER_NAME, topology) != waiting, REMIND_S
            )
        except TimeoutError:
            return ()
        return waiting

    async def _wait_router_ready(self, url: str) -> None:
        """The router follows the same keyspace on its own; give it the moment that takes."""
        deadline = self._clock.now() + ROUTER_CATCHES_UP_S
        async with httpx.AsyncClient(trust_env=False, timeout=ROUTER_ANSWER_S) as client:
            while (answer := await _ask_ready(client, url)) is not None:
                if self._clock.now() >= deadline:
                    raise RouterNotReady(f"the router at {url} does not take requests: {answer}")
                await self._clock.sleep(ROUTER_POLL_S)


def _progress(waiting: tuple[str, ...], store_error: str | None) -> str:
    store = "" if store_error is None else f"; the store: {store_error}"
    return f"waiting for {', '.join(waiting)}{store}"


async def _ask_ready(client: httpx.AsyncClient, url: str) -> str | None:
    """Why the router is not ready, None when it is."""
    try:
        response = await client.get(f"{url}/ready")
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return None if response.status_code == 200 else response.text.strip()
