"""Clusters of real processes on tiny models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import figures
from tests.support.cluster import Cluster, Engine, Router
from tests.support.eventually import eventually_now
from tests.support.tiny_models import write_tiny_llama


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show every figure of this run as one table."""
    if lines := figures.table():
        terminalreporter.section("figures of the fault runs")
        terminalreporter.write_line("\n".join(lines))


BY_CHUNK: Final = ("--max-prefill-tokens", "64", "--per-chunk-sending", "on")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two prefills, one decode, and routers with a long and a short budget. ``heal`` makes it whole again.

    ``other`` is a prefill of two tensor-parallel ranks. Prompts of more than 64 tokens are computed, and sent, in chunks.
    """

    cluster: Cluster
    prefill: Engine
    other: Engine
    decode: Engine
    router: Router
    hasty: Router

    @property
    def engines(self) -> tuple[Engine, ...]:
        return (self.prefill, self.other, self.decode)

    @property
    def processes(self) -> tuple[Engine | Router, ...]:
        return (*self.engines, self.router, self.hasty)

    def heal(self) -> None:
        """Continue what a test stopped, start what it ended, and wait until everybody knows everybody and nothing is held."""
        for engine in self.engines:
            for rank in engine.ranks():
                rank.resume()
        for process in self.processes:
            if not process.running:
                process.start()
        for process in self.processes:
            process.wait_ready()
        eventually_now(lambda: not self.leftovers(), 10, "a fleet at rest")

    def leftovers(self) -> dict[str, float]:
        """Whatever is still held although nothing runs."""
        return {
            f"{process.url} {name}": value
            for process in self.processes
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


@pytest.fixture(scope="session")
def whole_fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Fleet]:
    """One fleet for all tests: starting ranks is what costs."""
    with Cluster(tmp_path_factory.mktemp("fleet"), tiny_model) as cluster:
        cluster.etcd.start()
        yield Fleet(
            cluster,
            cluster.engine("prefill", *BY_CHUNK),
            cluster.engine("prefill", "--tp", "2", *BY_CHUNK),
            cluster.engine("decode"),
            cluster.router(),
            cluster.router("--request-timeout-s", "3"),
        )


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Fleet:
    """The fleet, whole and at rest."""
    whole_fleet.heal()
    return whole_fleet
