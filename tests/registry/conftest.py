"""Servers shared by the registry's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.etcd_server import EtcdServer, etcd_server


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdServer]:
    """A running etcd for tests that leave it running; each uses keys of its own."""
    with etcd_server() as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """A running etcd that this test may stop, kill, pause and wipe."""
    with etcd_server() as server:
        yield server


@pytest.fixture(scope="session")
def etcd_endpoint(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a running etcd: ``PDCORE_TEST_ETCD`` (one in a container, say), else a child of this run."""
    given = os.environ.get("PDCORE_TEST_ETCD")
    if given:
        return given
    server: EtcdServer = request.getfixturevalue("shared_etcd")
    return server.endpoint
