"""Redis in a container is a store like any other: the contract, and a request through a cluster that lives on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.registry.fault_contract import FaultContract
from tests.registry.load_contract import LoadContract
from tests.registry.redis_factory import RedisFactory
from tests.registry.store_contract import StoreContract
from tests.support.cluster import Cluster
from tests.support.docker_engine import DockerEngine
from tests.support.network import Relay
from tests.support.redis_container import redis_container
from tests.support.redis_server import redis_server, require_redis
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.container, pytest.mark.slow]

REQUEST = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@contextmanager
def fresh_redis(engine: DockerEngine | None) -> Iterator[str]:
    """``host:port`` of an empty Redis in a container, or of a local one where there is no engine."""
    require_redis()
    if engine is None:
        with redis_server() as server:
            yield server.endpoint
        return
    with redis_container(engine) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def contained_redis(engine: DockerEngine | None) -> Iterator[str]:
    with fresh_redis(engine) as endpoint:
        yield endpoint


@pytest.fixture
def store_factory(contained_redis: str) -> RedisFactory:
    return RedisFactory(contained_redis)


class ReplaceableFactory(RedisFactory):
    """What ``relay`` leads to; ``fresh`` gives the address of another, empty server."""

    def __init__(self, relay: Relay, fresh: Callable[[], str]) -> None:
        super().__init__(relay.endpoint)
        self._relay = relay
        self._fresh = fresh

    async def cut(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self._relay.cut()

    async def wipe(self) -> None:
        """See :class:`~tests.registry.fault_contract.FaultyStoreFactory`."""
        self._relay.lead_to(await asyncio.to_thread(self._fresh))
        self._relay.cut()


@pytest.fixture
async def faulty_factory(
    engine: DockerEngine | None, contained_redis: str
) -> AsyncIterator[ReplaceableFactory]:
    with ExitStack() as servers:
        async with Relay.to(contained_redis) as relay:
            yield ReplaceableFactory(relay, lambda: servers.enter_context(fresh_redis(engine)))


class TestRedisInContainer(StoreContract, LoadContract, FaultContract):
    """The suites against a server in a container."""


@pytest.fixture
def cluster(contained_redis: str, tmp_path: Path) -> Iterator[Cluster]:
    model = write_tiny_llama(tmp_path / "tiny")
    with Cluster(tmp_path, model, store=f"redis://{contained_redis}", cluster="contained") as cluster:
        yield cluster


def test_a_request_passes_through_engines_that_met_in_it(cluster: Cluster) -> None:
    _, _, router = cluster.pair()
    answer = router.post("/v1/completions", REQUEST)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
