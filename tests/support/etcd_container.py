"""etcd in a container, reached through a port published on loopback."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.support.docker_engine import DockerEngine
from tests.support.eventually import eventually_now

PUBLIC_IMAGE: Final = "quay.io/coreos/etcd:v3.5.21"
LOCAL_IMAGE: Final = "pdcore-test/etcd:local"
PORT: Final = 2379
START_S: Final = 30.0


@contextmanager
def etcd_container(engine: DockerEngine) -> Iterator[str]:
    """``host:port`` of a fresh etcd; the container is removed at the end of the block."""
    image = engine.image(PUBLIC_IMAGE, LOCAL_IMAGE, ("etcd", "etcdctl"))
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("DOCKER_HOST", engine.host)
        # The reaper is an image of its own, which nobody here could pull; leaving the block removes the container.
        environ.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.core.container import DockerContainer

        # Every address of the container's own network namespace; outside it only the published port exists.
        listen = f"http://[::]:{PORT}"
        container = DockerContainer(image).with_command(
            f"etcd --data-dir /tmp/etcd --listen-client-urls {listen} --advertise-client-urls http://127.0.0.1:{PORT}"
        )
        container.ports[f"{PORT}/tcp"] = ("127.0.0.1", None)
        with container:
            endpoint = f"127.0.0.1:{container.get_exposed_port(PORT)}"
            eventually_now(lambda: _is_healthy(endpoint), START_S, "etcd in its container serves")
            yield endpoint


def _is_healthy(endpoint: str) -> bool:
    connection = http.client.HTTPConnection(endpoint, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
