"""A cluster whose keyspace is in Redis alone serves, and its keyspace can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import pdcore.cli
from tests.support.cluster import Cluster
from tests.support.eventually import eventually_now
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.cluster

REQUEST = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
ENTRIES = "{pdcore}:entries"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def test_a_request_passes_through_engines_that_met_in_it(
    server: RedisServer, tmp_path: Path, tiny_model: Path
) -> None:
    with Cluster(tmp_path, tiny_model, store=server.url, cluster="on-redis") as cluster:
        prefill, decode, router = cluster.pair()
        answer = router.post("/v1/completions", REQUEST)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 8
        with server.control() as redis:
            stored = redis.hget(ENTRIES, f"/pdcore/on-redis/view/instances/{decode.instance_id}")
            assert isinstance(stored, bytes)
            created, modified, lease, value = stored.decode().split(" ", 3)
            assert 0 < int(created) <= int(modified)
            assert int(lease)
            assert json.loads(value)["state"] == "serving"
        shown = CliRunner().invoke(
            pdcore.cli.main, ("topology", "--store", server.url, "--cluster", "on-redis")
        )
        assert shown.exit_code == 0, shown.output
        assert prefill.instance_id in shown.output
        prefill.kill()
        eventually_now(
            lambda: router.post("/v1/completions", REQUEST).status_code == 503, 10, "the loss is known"
        )
