"""Servers in containers, for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.docker_engine import DockerEngine, NoEngine, docker_engine
from tests.support.etcd_container import etcd_container
from tests.support.etcd_server import etcd_server, require_etcd


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine | None]:
    """The Docker engine; None where there is none and none can be started, which ``CI=true`` does not accept."""
    require_etcd()
    try:
        with docker_engine() as found:
            yield found
    except NoEngine as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        print(f"no containers: {missing}")
        yield None


@contextmanager
def fresh_etcd(engine: DockerEngine | None) -> Iterator[str]:
    """``host:port`` of an empty etcd in a container, or of a local one where there is no engine."""
    if engine is None:
        with etcd_server() as server:
            yield server.endpoint
        return
    with etcd_container(engine) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def contained_etcd(engine: DockerEngine | None) -> Iterator[str]:
    """``host:port`` of the run's etcd in a container."""
    with fresh_etcd(engine) as endpoint:
        yield endpoint
