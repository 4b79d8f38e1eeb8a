"""Who is in the keyspace follows what really runs, within the times an operator is promised."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.conftest import Fleet
from tests.support.cluster import Router
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow]

REQUEST = {"model": "tiny", "prompt": "who is here", "max_tokens": 4, "temperature": 0}
DEAD_S = 1.0


def is_served(router: Router, body: dict[str, object]) -> bool:
    return router.post("/v1/completions", body).status_code == 200


def test_the_keyspace_is_readable_while_the_cluster_runs(fleet: Fleet) -> None:
    records = fleet.cluster.keyspace()
    for engine in (fleet.prefill, fleet.decode):
        instance = records[f"instances/{engine.instance_id}"]
        rank = records[f"ranks/{engine.instance_id}/0.0.0"]
        assert (instance["state"], instance["url"], instance["v"]) == ("serving", engine.url, 1)
        assert instance["incarnation"] == rank["incarnation"] == engine.incarnation
    assert any(key.startswith("routers/") for key in records)


@pytest.mark.parametrize("role", [pytest.param("prefill", marks=pytest.mark.cluster), "decode"])
def test_a_killed_engine_is_gone_within_a_second_without_traffic(fleet: Fleet, role: str) -> None:
    engine = fleet.prefill if role == "prefill" else fleet.decode
    incarnation = engine.incarnation
    killed = time.monotonic()
    engine.kill()
    eventually_now(lambda: not fleet.cluster.instance_keys(engine.instance_id), DEAD_S, "withdrawn")
    assert time.monotonic() - killed < DEAD_S
    departure = fleet.cluster.keyspace()[f"departures/{engine.instance_id}"]
    assert (departure["incarnation"], departure["reason"]) == (incarnation, "died")


@pytest.mark.cluster
def test_a_killed_engine_leaves_no_directory_behind(fleet: Fleet) -> None:
    transfer = fleet.cluster.keyspace()[f"ranks/{fleet.prefill.instance_id}/0.0.0"]["transfer"]
    runtime_dir = Path(transfer["engines"]["shm"]["socket"]).parent
    assert runtime_dir.is_dir()
    fleet.prefill.kill()
    eventually_now(lambda: not runtime_dir.exists(), 5, "its sockets' directory removed")


def test_a_terminated_engine_leaves_at_once_and_exits_cleanly(fleet: Fleet) -> None:
    engine = fleet.other
    engine.signal(signal.SIGTERM)
    eventually_now(lambda: not fleet.cluster.instance_keys(engine.instance_id), DEAD_S, "withdrawn")
    assert engine.wait(10) == 0
    assert fleet.cluster.keyspace()[f"departures/{engine.instance_id}"]["reason"] in {"left", "drained"}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("role", "times"),
    [
        pytest.param("prefill", 20, id="prefill-20-times"),
        pytest.param("decode", 20, id="decode-20-times"),
    ],
)
def test_an_engine_restarted_at_its_address_takes_traffic_as_a_new_incarnation(
    fleet: Fleet, role: str, times: int
) -> None:
    engine = fleet.prefill if role == "prefill" else fleet.decode
    seen = {engine.incarnation}
    for _ in range(times):
        engine.kill()
        engine.start()
        engine.wait_ready()
        pinned = fleet.cluster.bootstrap(fleet.prefill)
        eventually_now(
            partial(is_served, fleet.router, {**REQUEST, **pinned}),
            DEAD_S,
            "traffic after the restart",
        )
        seen.add(engine.incarnation)
    assert len(seen) == times + 1
