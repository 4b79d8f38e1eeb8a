"""Redis in a container, reached through a port published on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.support.docker_engine import DockerEngine
from tests.support.eventually import eventually_now

PUBLIC_IMAGE: Final = "redis:7.4"
LOCAL_IMAGE: Final = "pdcore-test/redis:local"
PORT: Final = 6379
START_S: Final = 30.0


@contextmanager
def redis_container(engine: DockerEngine) -> Iterator[str]:
    """``host:port`` of a fresh Redis; the container is removed at the end of the block."""
    image = engine.image(PUBLIC_IMAGE, LOCAL_IMAGE, ("redis-server",))
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("DOCKER_HOST", engine.host)
        # The reaper is an image of its own, which nobody here could pull; leaving the block removes the container.
        environ.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.core.container import DockerContainer

        # Every address of the container's own network namespace; outside it only the published port exists.
        container = DockerContainer(image).with_command(
            f"redis-server --dir /tmp --save '' --port {PORT} --bind '* -::*' --protected-mode no"
        )
        container.ports[f"{PORT}/tcp"] = ("127.0.0.1", None)
        with container:
            endpoint = f"127.0.0.1:{container.get_exposed_port(PORT)}"
            eventually_now(lambda: _answers(endpoint), START_S, "redis in its container serves")
            yield endpoint


def _answers(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
    except OSError:
        return False
