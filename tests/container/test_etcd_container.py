"""etcd in a container is a store like any other: the contract, and a request through a cluster that lives on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.container.conftest import fresh_etcd
from tests.registry.fault_contract import FaultContract
from tests.registry.load_contract import LoadContract
from tests.registry.store_contract import EtcdFactory, StoreContract
from tests.support.cluster import Cluster
from tests.support.docker_engine import DockerEngine
from tests.support.network import Relay
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.container, pytest.mark.slow]

REQUEST = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def store_factory(contained_etcd: str) -> EtcdFactory:
    return EtcdFactory(contained_etcd)


class ReplaceableFactory(EtcdFactory):
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
    engine: DockerEngine | None, contained_etcd: str
) -> AsyncIterator[ReplaceableFactory]:
    with ExitStack() as servers:
        async with Relay.to(contained_etcd) as relay:
            yield ReplaceableFactory(relay, lambda: servers.enter_context(fresh_etcd(engine)))


class TestEtcdInContainer(StoreContract, LoadContract, FaultContract):
    """The suites against a server in a container."""


@pytest.fixture
def cluster(contained_etcd: str, tmp_path: Path) -> Iterator[Cluster]:
    model = write_tiny_llama(tmp_path / "tiny")
    with Cluster(tmp_path, model, store=f"etcd://{contained_etcd}", cluster="contained") as cluster:
        yield cluster


def test_a_request_passes_through_engines_that_met_in_it(cluster: Cluster) -> None:
    _, _, router = cluster.pair()
    answer = router.post("/v1/completions", REQUEST)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
