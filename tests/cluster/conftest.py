"""Clusters of real processes on tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Engine, Router
from tests.support.tiny_models import write_tiny_llama


@dataclass(frozen=True, slots=True)
class Pair:
    """The smallest PD cluster."""

    cluster: Cluster
    prefill: Engine
    decode: Engine
    router: Router

    def leftovers(self) -> dict[str, float]:
        """Whatever is still held although nothing runs."""
        return {
            f"{process.url} {name}": value
            for process in (self.prefill, self.decode, self.router)
            for name, value in process.leftovers().items()
        }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed-made Llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def bare_cluster(tmp_path: Path, tiny_model: Path) -> Iterator[Cluster]:
    """Nothing runs yet, not even etcd."""
    with Cluster(tmp_path, tiny_model) as cluster:
        yield cluster


@pytest.fixture
def cluster(bare_cluster: Cluster) -> Cluster:
    """etcd runs; the test starts the rest."""
    bare_cluster.etcd.start()
    return bare_cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Pair]:
    """One prefill, one decode, one router, shared by the tests of a module, which leave them as they found them."""
    with Cluster(tmp_path_factory.mktemp("pair"), tiny_model) as cluster:
        cluster.etcd.start()
        yield Pair(cluster, *cluster.pair())
