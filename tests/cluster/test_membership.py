"""Who is in the keyspace follows what really runs, within the times an operator is promised."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster.conftest import Pair
from tests.support.cluster import Cluster
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow]

REQUEST = {"model": "tiny", "prompt": "who is here", "max_tokens": 4, "temperature": 0}
DEAD_S = 1.0


def test_the_keyspace_is_readable_while_the_cluster_runs(pair: Pair) -> None:
    records = pair.cluster.keyspace()
    for engine in (pair.prefill, pair.decode):
        instance = records[f"instances/{engine.instance_id}"]
        rank = records[f"ranks/{engine.instance_id}/0.0.0"]
        assert (instance["state"], instance["url"], instance["v"]) == ("serving", engine.url, 1)
        assert instance["incarnation"] == rank["incarnation"] == engine.incarnation
    assert any(key.startswith("routers/") for key in records)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_killed_engine_is_gone_within_a_second_without_traffic(cluster: Cluster, role: str) -> None:
    engine = cluster.engine(role).wait_ready()
    incarnation = engine.incarnation
    killed = time.monotonic()
    engine.kill()
    eventually_now(lambda: not cluster.instance_keys(engine.instance_id), DEAD_S, "withdrawn")
    assert time.monotonic() - killed < DEAD_S
    departure = cluster.keyspace()[f"departures/{engine.instance_id}"]
    assert (departure["incarnation"], departure["reason"]) == (incarnation, "died")


def test_a_terminated_engine_leaves_at_once_and_exits_cleanly(cluster: Cluster) -> None:
    engine = cluster.engine("unified").wait_ready()
    engine.signal(signal.SIGTERM)
    eventually_now(lambda: not cluster.instance_keys(engine.instance_id), DEAD_S, "withdrawn")
    assert engine.wait(10) == 0
    departure = cluster.keyspace()[f"departures/{engine.instance_id}"]
    assert departure["reason"] in {"left", "drained"}


@pytest.mark.parametrize(
    ("role", "times"),
    [
        pytest.param("prefill", 2, id="prefill-2"),
        pytest.param("prefill", 20, marks=pytest.mark.cluster, id="prefill-20"),
        pytest.param("decode", 20, marks=pytest.mark.cluster, id="decode-20"),
    ],
)
def test_an_engine_restarted_at_its_address_takes_traffic_as_a_new_incarnation(
    cluster: Cluster, role: str, times: int
) -> None:
    prefill, decode, router = cluster.pair()
    engine = prefill if role == "prefill" else decode
    seen = {engine.incarnation}
    assert router.post("/v1/completions", REQUEST).status_code == 200
    for _ in range(times):
        engine.kill()
        engine.start()
        engine.wait_ready()
        eventually_now(
            lambda: router.post("/v1/completions", REQUEST).status_code == 200,
            DEAD_S,
            "traffic after the restart",
        )
        seen.add(engine.incarnation)
    assert len(seen) == times + 1
