"""A store in a container is one like any other: the contract, and a request through a cluster that lives on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.container.servers import fresh_etcd, fresh_redis
from tests.registry.fault_contract import FaultContract, FaultyStoreFactory
from tests.registry.load_contract import LoadContract
from tests.registry.redis_factory import RedisFactory
from tests.registry.store_contract import EtcdFactory, StoreContract, StoreFactory
from tests.support.cluster import Cluster
from tests.support.docker_engine import DockerEngine
from tests.support.network import Relay
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.container, pytest.mark.slow]

REQUEST = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Replaceable:
    """A factory for what ``relay`` leads to; ``fresh`` gives the address of another, empty server."""

    def __init__(self, relay: Relay, fresh: Callable[[], str]) -> None:
        super().__init__(relay.endpoint)  # type: ignore[call-arg]
        self._relay = relay
        self._fresh = fresh

    async def cut(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self._relay.cut()

    async def wipe(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self._relay.lead_to(await asyncio.to_thread(self._fresh))
        self._relay.cut()


class ReplaceableEtcd(Replaceable, EtcdFactory):
    """etcd behind a relay."""


class ReplaceableRedis(Replaceable, RedisFactory):
    """Redis behind a relay."""


class Fresh(Protocol):
    """``host:port`` of an empty server in a container, or of a local one where there is no engine."""

    def __call__(self, engine: DockerEngine | None) -> AbstractContextManager[str]: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of store, as the contract needs it."""

    scheme: str
    fresh: Fresh
    factory: Callable[[str], StoreFactory]
    replaceable: Callable[[Relay, Callable[[], str]], FaultyStoreFactory]


KINDS: Final = {
    "etcd": Kind("etcd://", fresh_etcd, EtcdFactory, ReplaceableEtcd),
    "redis": Kind("redis://", fresh_redis, RedisFactory, ReplaceableRedis),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = KINDS[request.param]
    return found


@pytest.fixture(scope="module")
def contained(kind: Kind, engine: DockerEngine | None) -> Iterator[str]:
    """``host:port`` of the module's server."""
    with kind.fresh(engine) as endpoint:
        yield endpoint


@pytest.fixture
def store_factory(kind: Kind, contained: str) -> StoreFactory:
    return kind.factory(contained)


@pytest.fixture
async def faulty_factory(
    kind: Kind, engine: DockerEngine | None, contained: str
) -> AsyncIterator[FaultyStoreFactory]:
    with ExitStack() as servers:
        async with Relay.to(contained) as relay:
            yield kind.replaceable(relay, lambda: servers.enter_context(kind.fresh(engine)))


class TestStoreInContainer(StoreContract, LoadContract, FaultContract):
    """The suites against a server in a container."""


@pytest.fixture
def cluster(kind: Kind, contained: str, tmp_path: Path) -> Iterator[Cluster]:
    model = write_tiny_llama(tmp_path / "tiny")
    with Cluster(tmp_path, model, store=kind.scheme + contained, cluster="contained") as cluster:
        yield cluster


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["etcd", "redis"], indirect=True, scope="module")
def test_a_request_passes_through_engines_that_met_in_it(cluster: Cluster) -> None:
    _, _, router = cluster.pair()
    answer = router.post("/v1/completions", REQUEST)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
