"""What a fault of the store is played on: a writer and a follower, and an instance served by a router meanwhile.

The instance is a registration with its real registrar process, behind it an HTTP server that answers; the router is a
real process. A client asks it ten times a second. Nothing of this may notice the fault but by what the row allows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import httpx

from pdcore.beside import running_beside
from pdcore.config import StoreAccess
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.identity import NOBODY, Identity
from pdcore.registry.follower import RECONCILE_S, Follower, FollowerStatistics
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace, instance
from pdcore.topology.records import InstanceRecord
from tests.support.account import Account, Balance
from tests.support.cluster import START_S, Router
from tests.support.etcd_cluster import EtcdCluster
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, FakeEngine, answer
from tests.support.network import Relay
from tests.support.parents import rank
from tests.support.processes import free_port
from tests.support.registrations import FIRST, instance_record, rank_record, spec

KEYSPACE: Final = Keyspace(cluster="test")
INSTANCE: Final = "d0"
INCARNATION: Final = "a"
TTL_S: Final = 5
BLIND_S: Final = 8.0
"""The longest that a follower may not notice that it follows no more."""
ASK_EVERY_S: Final = 0.1
FRESH_S: Final = 1.0
"""A connection unused for longer is not used again: the other side may be closing it."""
AFTERWARDS_S: Final = 2.0
"""How long everything goes on after a fault, so that what it broke shows."""
REQUEST: Final = {"model": "tiny", "prompt": "still there", "max_tokens": 1}


@dataclass(slots=True)
class Client:
    """Asks a router again and again; what it answered."""

    url: str
    asked: int = 0
    failures: list[str] = field(default_factory=list)

    async def run(self) -> None:
        limits = httpx.Limits(keepalive_expiry=FRESH_S)
        async with (
            httpx.AsyncClient(timeout=10, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            due = time.monotonic()
            while True:
                group.create_task(self._ask(client))
                due += ASK_EVERY_S
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self, client: httpx.AsyncClient) -> None:
        self.asked += 1
        try:
            response = await client.post(f"{self.url}/v1/completions", json=REQUEST)
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
            return
        if response.status_code != 200:
            self.failures.append(f"{response.status_code} {response.text[:300]}")


@dataclass(frozen=True, slots=True)
class Result:
    """All that is judged of one fault. ``noticed_s`` and ``back_s`` are None where a row has no such moment."""

    balance: Balance
    statistics: FollowerStatistics
    asked: int
    failures: tuple[str, ...]
    registrars: int
    router_runs: bool
    noticed_s: float | None
    back_s: float | None

    @property
    def blind_s(self) -> float:
        """The longest that the view was not the store's without saying so."""
        return self.balance.late_s if self.noticed_s is None else self.noticed_s


@dataclass(slots=True)
class Stage:
    """Everything at work, and the figures so far."""

    account: Account
    registration: Registration
    router: Router
    client: Client
    registrars: set[int | None] = field(default_factory=set)
    noticed_s: float | None = None
    back_s: float | None = None

    @property
    def follower(self) -> Follower:
        return self.account.follower

    def instance_stands(self) -> bool:
        """Whether the view has the instance, complete and serving."""
        found = self.follower.topology.instances.get(INSTANCE)
        return found is not None and found.ready

    def written_at(self) -> int:
        """The revision of the instance's record in the view; 0 without one."""
        entry = self.follower.topology.entry(instance(INSTANCE))
        return 0 if entry is None else entry.mod_revision

    async def notices(self, within_s: float) -> None:
        """Wait until the follower says that its view ages; the figure is from now on."""
        began = time.monotonic()
        await eventually(lambda: self.follower.last_error is not None, within_s, "the fault is noticed")
        self.noticed_s = time.monotonic() - began

    async def is_back(self, since: float) -> None:
        """Wait until a write acknowledged after ``since`` is told; the longest of several counts."""
        await self.account.goes_on(since)
        self.back_s = max(self.back_s or 0.0, time.monotonic() - since)

    async def keys_are_back(self, since: float, before: int, within_s: float = 20.0) -> None:
        """Wait until the instance, last written at ``before``, was written again and stands."""
        await eventually(
            lambda: self.written_at() not in {0, before} and self.instance_stands(),
            within_s,
            "the keys are back",
        )
        self.back_s = time.monotonic() - since

    async def conclude(self) -> Result:
        """Once everything has settled and the view is what a fresh list tells: the figures."""
        await eventually(self.instance_stands, 10.0, "the instance stands")
        await asyncio.sleep(AFTERWARDS_S)
        return Result(
            balance=await self.account.close(),
            statistics=self.follower.statistics(),
            asked=self.client.asked,
            failures=tuple(self.client.failures),
            registrars=len(self.registrars | {self.registration.registrar_pid}),
            router_runs=self.router.running,
            noticed_s=self.noticed_s,
            back_s=self.back_s,
        )


@asynccontextmanager
async def staged(
    directory: Path,
    *,
    store: Store,
    access: StoreAccess,
    admin: Store,
    ttl_s: int = TTL_S,
    reconcile_s: float = RECONCILE_S,
) -> AsyncIterator[Stage]:
    """Everything at work on a store that runs. The follower uses ``store``; registrar and router ``access``."""
    account = Account.of(admin, KEYSPACE, Follower(store, KEYSPACE, reconcile_s=reconcile_s))
    async with AsyncExitStack() as opened:
        for one in (store, admin, account.follower):
            await opened.enter_async_context(one)
        engine = await opened.enter_async_context(_engine())
        registration = await opened.enter_async_context(Registration(_spec(access, ttl_s)))
        await registration.claim()
        opened.enter_context(rank(registration))
        registration.put(_record(engine.url), {FIRST: rank_record(INCARNATION)})
        router = await opened.enter_async_context(apart(_router(access, directory)))
        await asyncio.to_thread(router.wait_ready, START_S)
        client = Client(router.url)
        await opened.enter_async_context(running_beside(account.writer.run()))
        await opened.enter_async_context(running_beside(client.run()))
        await account.warm_up()
        yield Stage(account, registration, router, client, {registration.registrar_pid})


def _engine() -> FakeEngine:
    """Answers every completion, and says who it is when asked how it is."""
    health = answer(200, {"status": "ok", "incarnation": INCARNATION})
    return FakeEngine([answer(200, COMPLETION)], health=health)


def _spec(access: StoreAccess, ttl_s: int) -> RegistrarSpec:
    return spec(access.url, INCARNATION, store=access, ttl_s=ttl_s, role="unified", log_level="warning")


def _record(url: str) -> InstanceRecord:
    return instance_record(INCARNATION, url=url)._replace(role="unified", protocol="unified")


def _router(access: StoreAccess, directory: Path) -> Router:
    port = free_port()
    arguments = ["--store", access.url, "--cluster", KEYSPACE.cluster, "--port", str(port)]
    environ = {}
    if access.user is not None and access.password is not None:
        arguments += ["--store-user", access.user]
        environ["PDCORE_STORE_PASSWORD"] = access.password
    command = [sys.executable, "-m", "pdcore.router", *arguments]
    return Router(command, directory / "router.log", port, environ=environ)


ThingT = TypeVar("ThingT")


@asynccontextmanager
async def apart(thing: AbstractContextManager[ThingT]) -> AsyncIterator[ThingT]:
    """The same, but nobody waits for its beginning and end who is not concerned."""
    entered = await asyncio.to_thread(thing.__enter__)
    try:
        yield entered
    finally:
        await asyncio.to_thread(thing.__exit__, None, None, None)


@asynccontextmanager
async def one_member(directory: Path, *flags: str) -> AsyncIterator[tuple[EtcdServer, Stage]]:
    """A stage on a single etcd, everybody connected to it directly."""
    async with apart(EtcdServer(directory, extra=flags)) as server:
        admin, store = impatient(server.endpoint), reaching(server.endpoint)
        async with staged(directory, store=store, access=access_to(server.endpoint), admin=admin) as stage:
            yield server, stage


@asynccontextmanager
async def one_member_behind_a_relay(directory: Path) -> AsyncIterator[tuple[EtcdServer, Relay, Stage]]:
    """A stage on a single etcd that follower, registrar and router reach through a relay, ``admin`` directly."""
    async with apart(EtcdServer(directory)) as server, Relay.to(server.endpoint) as relay:
        admin, store = impatient(server.endpoint), reaching(relay.endpoint)
        async with staged(directory, store=store, access=access_to(relay.endpoint), admin=admin) as stage:
            yield server, relay, stage


@asynccontextmanager
async def three_members(directory: Path) -> AsyncIterator[tuple[EtcdCluster, Stage]]:
    """A stage on three etcd members; the follower begins with the first."""
    async with apart(EtcdCluster(directory)) as cluster:
        admin, store = impatient(*cluster.endpoints), reaching(*cluster.endpoints)
        async with staged(directory, store=store, access=access_to(*cluster.endpoints), admin=admin) as stage:
            yield cluster, stage


def access_to(*endpoints: str, user: str | None = None, password: str | None = None) -> StoreAccess:
    """As somebody's settings say it."""
    return StoreAccess(url="etcd://" + ",".join(endpoints), timeout_s=3.0, user=user, password=password)


def reaching(*endpoints: str, identity: Identity = NOBODY) -> Store:
    """A follower's store, beginning with the first."""
    return EtcdStore(endpoints, timeout_s=3.0, first=0, identity=identity)


def impatient(*endpoints: str, identity: Identity = NOBODY) -> Store:
    """A writer's store, which had rather try again."""
    return EtcdStore(endpoints, timeout_s=1.0, identity=identity)
