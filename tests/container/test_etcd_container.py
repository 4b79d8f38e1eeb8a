"""etcd in a container is a store like any other: the contract, and a request through a cluster that lives on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registry.store_contract import EtcdFactory, StoreContract
from tests.support.cluster import Cluster
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.container, pytest.mark.slow]

REQUEST = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def store_factory(contained_etcd: str) -> EtcdFactory:
    return EtcdFactory(contained_etcd)


class TestEtcdInContainer(StoreContract):
    """The suite against a server in a container."""


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
