"""A whole router for a test: real sockets on both sides, the real follower, a keyspace in memory."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from pdcore.beside import running_beside
from pdcore.clock import SystemClock
from pdcore.config import RouterConfig
from pdcore.http_server import answering, listen, url_of
from pdcore.registry.follower import Follower
from pdcore.registry.memory import MemoryStore
from pdcore.registry.ring import Ring, remembering
from pdcore.registry.store import Delete, LeaseId, Put
from pdcore.router.access import OPEN, Access
from pdcore.router.app import build_app
from pdcore.router.assembly import assemble, watch_for_silence, watching_the_fleet
from pdcore.router.doors import engines_door
from pdcore.router.fixed.fleet import tended
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.metrics import LEGS
from pdcore.router.serving import Serving
from pdcore.router.wire_server import ServerConnection
from pdcore.router.wire_upstream import WireUpstream
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace, RankId, RankPosition
from pdcore.topology.records import DepartureRecord, InstanceRecord, RankRecord, Record, Role
from tests.support.eventually import eventually
from tests.support.fake_engines import FakeEngine
from tests.support.fleet import compat, instance_record

MODEL: Final = "tiny"
SPACE: Final = Keyspace(cluster="test")
BOOTSTRAP_PORT: Final = 18800

COMPAT: Final = compat(context_length=512, kv_layout="block-major")


def record(role: Role, url: str, **changes: Any) -> InstanceRecord:
    """A serving instance with one rank."""
    made = instance_record(
        role, incarnation="i1", models=(MODEL,), url=url, protocol="bootstrap", compat=COMPAT
    )
    return made._replace(**changes)


def entries(instance_id: str, made: InstanceRecord) -> dict[str, Record]:
    """The keys of a complete instance, relative to the view."""
    found: dict[str, Record] = {keys.instance(instance_id): made}
    for dp in range(made.dp_size):
        rank = RankRecord(
            incarnation=made.incarnation,
            rank_ip="127.0.0.1",
            rank_port=1,
            transfer={},
            device="cpu",
            machine="m",
        )
        found[keys.rank(RankId(instance_id, RankPosition(dp, 0, 0)))] = rank
    return found


async def register(store: MemoryStore, instance_id: str, made: InstanceRecord) -> None:
    """Put a complete instance in one revision."""
    puts = tuple(Put(SPACE.view + key, codec.encode(one)) for key, one in entries(instance_id, made).items())
    await store.commit((), puts)


async def withdraw(store: MemoryStore, instance_id: str, made: InstanceRecord) -> None:
    """Delete it in one revision that says why."""
    departed = DepartureRecord(incarnation=made.incarnation, reason="left", by="test")
    why = Put(SPACE.view + keys.departure(instance_id), codec.encode(departed))
    await store.commit((), (why, *(Delete(SPACE.view + key) for key in entries(instance_id, made))))


async def lose(store: MemoryStore, instance_id: str, made: InstanceRecord) -> None:
    """Delete it in one revision, unexplained."""
    await store.commit((), tuple(Delete(SPACE.view + key) for key in entries(instance_id, made)))


def config(**changes: Any) -> RouterConfig:
    """Settings with short budgets."""
    made = RouterConfig(
        store="etcd://127.0.0.1:1",
        cluster=SPACE.cluster,
        log_format="text",
        log_level="error",
        store_timeout_s=1,
        host="127.0.0.1",
        request_timeout_s=20,
        probe_timeout_s=0.5,
        max_body_bytes=1 << 20,
        drain_timeout_s=5,
        port=0,
        router_id="r",
        lease_ttl_s=10,
        view_cache=None,
        connect_timeout_s=5,
        first_byte_timeout_s=10,
        idle_timeout_s=10,
        frozen_after_s=1,
        max_attempts=3,
        max_in_flight=100,
    )
    return replace(made, **changes)


@dataclass
class Fleet:
    """A running router and its keyspace."""

    url: str
    serving: Serving
    lifecycle: Lifecycle
    store: MemoryStore
    follower: Follower
    upstream: WireUpstream
    client: httpx.AsyncClient
    leases: list[LeaseId] = field(default_factory=list)

    async def add(self, instance_id: str, role: Role, engine: FakeEngine, **changes: Any) -> InstanceRecord:
        """Register an engine and wait until the router sees it."""
        made = record(role, engine.url, **changes)
        await register(self.store, instance_id, made)
        await self.sees(instance_id, made.incarnation)
        return made

    async def sees(self, instance_id: str, incarnation: str) -> None:
        await self.follower.wait_until(
            lambda view: (
                instance_id in view.instances and view.instances[instance_id].incarnation == incarnation
            ),
            5,
        )

    async def remove(self, instance_id: str, made: InstanceRecord) -> None:
        await withdraw(self.store, instance_id, made)
        await self.follower.wait_until(lambda view: instance_id not in view.instances, 5)

    async def post(
        self, body: object, path: str = "/v1/completions", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """One request; ``body`` as JSON unless it is bytes."""
        if isinstance(body, bytes):
            return await self.client.post(path, content=body, headers=headers)
        return await self.client.post(path, json=body, headers=headers)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' samples that carry ``labels``, read where ``/metrics`` reads them."""
        families = self.serving.ground.metrics.registry.restricted_registry([name]).collect()
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        assert samples, f"there is no series {name}"
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def settled(self) -> None:
        """Nothing of any request is left anywhere in the router."""

        metrics = self.serving.ground.metrics

        def is_settled() -> bool:
            return not (metrics.in_flight.value() or any(map(metrics.legs_open, LEGS)))

        await eventually(is_settled, 3, "in-flight gauges at 0")
        assert self.serving.ledger.total == 0
        assert len(self.serving.contacts.callbacks) == 0
        assert self.lifecycle.requests == 0
        await eventually(lambda: self.upstream.busy_connections == 0, 3, "no connection busy")
        assert not (await self.store.list(SPACE.side + "client_rooms/")).entries


@asynccontextmanager
async def running_fleet(
    *,
    store: MemoryStore | None = None,
    access: Access = OPEN,
    engine_tls: ssl.SSLContext | None = None,
    protocol: type[asyncio.Protocol] = ServerConnection,
    **changes: Any,
) -> AsyncIterator[Fleet]:
    """A router over an empty keyspace."""
    settings, clock = config(**changes), SystemClock()
    lifecycle = Lifecycle(max_in_flight=settings.max_in_flight)
    listener = listen("127.0.0.1", 0, "port")
    store = store or MemoryStore()
    lease = await store.grant(60)
    upstream = WireUpstream(connect_timeout_s=settings.connect_timeout_s, tls=engine_tls)
    async with (
        store,
        Follower(store, SPACE, clock=clock) as follower,
        upstream,
        engines_door(settings) as reached,
    ):
        serving = assemble(
            settings,
            store=store,
            follower=follower,
            upstream=upstream,
            contacts=reached,
            clock=clock,
            lease=lambda: lease,
            access=access,
            engine_tls=engine_tls,
        )
        ring = Ring()
        app = build_app(router_id="r", serving=serving, lifecycle=lifecycle, ring=ring)
        url = url_of("127.0.0.1", listener)
        with watching_the_fleet(serving, lifecycle), remembering(follower, ring, clock):
            async with (
                serving.fleet,
                tended(serving.fixed, serving.fleet, settings.targets),
                running_beside(watch_for_silence(serving)),
                answering(app, listener, protocol=protocol),
                httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=False) as client,
            ):
                await follower.wait_until(lambda _: True, 5)
                yield Fleet(url, serving, lifecycle, store, follower, upstream, client)
