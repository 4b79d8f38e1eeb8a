"""Servers in containers, for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.docker_engine import DockerEngine, NoEngine, docker_engine
from tests.support.etcd_server import require_etcd


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
