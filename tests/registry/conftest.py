"""Servers shared by the registry's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.etcd_server import EtcdServer, etcd_server


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdServer]:
    """A running etcd for tests that leave it running; each uses a cluster name of its own."""
    with etcd_server() as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """A running etcd that this test may stop, kill, pause and wipe."""
    with etcd_server() as server:
        yield server
