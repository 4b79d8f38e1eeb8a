"""The Redis driver keeps the store contract on a real server, and to its own promises when the server fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.registry.fault_contract import FaultContract
from tests.registry.load_contract import LoadContract
from tests.registry.redis_factory import OwnRedisFactory, RedisFactory
from tests.registry.store_contract import StoreContract
from tests.support.network import Relay
from tests.support.redis_server import RedisServer, redis_server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A running Redis that this test may stop, kill, pause and wipe."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis_endpoint() -> Iterator[str]:
    """``host:port`` of a running Redis: ``PDCORE_TEST_REDIS`` (one in a container, say), else a child of this run."""
    given = os.environ.get("PDCORE_TEST_REDIS")
    if given:
        yield given
        return
    with redis_server() as server:
        yield server.endpoint


@pytest.fixture
def store_factory(redis_endpoint: str) -> RedisFactory:
    return RedisFactory(redis_endpoint)


@pytest.fixture
async def faulty_factory(own_redis: RedisServer) -> AsyncIterator[OwnRedisFactory]:
    async with Relay.to(own_redis.endpoint) as relay:
        yield OwnRedisFactory(own_redis, relay)


@pytest.mark.contract
@pytest.mark.integration
class TestRedisStore(StoreContract, LoadContract):
    """The suites against a server."""


@pytest.mark.contract
@pytest.mark.integration
class TestFaultyRedisStore(FaultContract):
    """The suite against a server of its own, behind a network that can be cut."""
