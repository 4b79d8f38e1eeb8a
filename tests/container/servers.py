"""Empty servers in containers, or local ones where no engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.docker_engine import DockerEngine
from tests.support.etcd_container import etcd_container
from tests.support.etcd_server import etcd_server
from tests.support.redis_container import redis_container
from tests.support.redis_server import redis_server, require_redis


@contextmanager
def fresh_etcd(engine: DockerEngine | None) -> Iterator[str]:
    """``host:port`` of an empty etcd."""
    if engine is None:
        with etcd_server() as server:
            yield server.endpoint
        return
    with etcd_container(engine) as endpoint:
        yield endpoint


@contextmanager
def fresh_redis(engine: DockerEngine | None) -> Iterator[str]:
    """``host:port`` of an empty Redis."""
    require_redis()
    if engine is None:
        with redis_server() as server:
            yield server.endpoint
        return
    with redis_container(engine) as endpoint:
        yield endpoint
