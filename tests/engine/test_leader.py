"""The life of a real leader process on a real etcd, with a fake rank: coming up, serving, every way to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.cluster import Engine
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually_now
from tests.support.leaders import Leaders
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENDLESS = {"prompt": [ord("*")], "max_tokens": 50, "stream": True}
SILENT = {"prompt": [ord("!")], "max_tokens": 50}
DEADLY = {"prompt": [ord("x")], "max_tokens": 50}
SHORT = {"prompt": [ord("a")], "max_tokens": 3}


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def leaders(etcd: EtcdServer, tmp_path: Path, model: Path) -> Iterator[Leaders]:
    some = Leaders(etcd, tmp_path, model)
    yield some
    some.close()


@pytest.fixture
def client() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def post(engine: Engine, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{engine.url}/generate", json=body, headers=headers, timeout=20, trust_env=False)


def refusal(engine: Engine) -> str:
    """All that a leader that refused to start has said."""
    assert engine.wait(60) == 2
    return engine.output().strip()


def children(engine: Engine) -> list[psutil.Process]:
    return psutil.Process(engine.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that only waits for init to reap it does not."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def serving_record(leaders: Leaders) -> dict[str, Any]:
    """The record of the only instance once it serves, else nothing."""
    records = [value for key, value in leaders.cluster.keyspace().items() if key.startswith("instances/")]
    return records[0] if records and records[0]["state"] == "serving" else {}


def departure(leaders: Leaders, engine: Engine) -> object:
    return leaders.cluster.keyspace().get(f"departures/{engine.instance_id}", {}).get("reason")


def test_it_registers_serves_drains_and_leaves(leaders: Leaders, client: ThreadPoolExecutor) -> None:
    engine = leaders.start("unified", "--drain-timeout-s", "2").wait_ready()
    record = leaders.cluster.keyspace()[f"instances/{engine.instance_id}"]
    assert (record["state"], record["url"], record["models"]) == ("serving", engine.url, ["tiny"])
    assert record["incarnation"] == engine.incarnation
    assert leaders.cluster.keyspace()[f"ranks/{engine.instance_id}/0.0.0"]["rank_port"] == 4321
    assert post(engine, SHORT).json()["completion_tokens"] == 3

    stream = client.submit(post, engine, ENDLESS)
    eventually_now(
        lambda: engine.gauge("pdcore_engine_time_to_first_token_seconds_count") == 2, 5, "a stream"
    )
    finishing = client.submit(post, engine, SILENT, **{"x-pdcore-remaining-ms": "1000"})
    eventually_now(lambda: engine.gauge("pdcore_engine_http_in_flight") == 2 or finishing.done(), 5, "taken")
    processes = children(engine)
    engine.signal(signal.SIGTERM)
    eventually_now(
        lambda: leaders.cluster.keyspace()[f"instances/{engine.instance_id}"]["state"] == "draining", 2
    )
    refused = post(engine, SHORT)
    assert (refused.status_code, refused.headers["x-pdcore-refused"]) == (421, "draining")
    assert finishing.result(5).status_code == 504
    assert engine.wait(10) == 0
    last = stream.result(5).text.strip().splitlines()[-1]
    assert '"backend_unavailable"' in last
    assert leaders.cluster.instance_keys(engine.instance_id) == []
    assert departure(leaders, engine) == "left"
    eventually_now(lambda: not alive(processes), 5, "no orphans")


def test_a_rank_that_dies_ends_the_instance(leaders: Leaders, client: ThreadPoolExecutor) -> None:
    engine = leaders.start("unified").wait_ready()
    held = client.submit(post, engine, SILENT)
    eventually_now(lambda: engine.gauge("pdcore_engine_http_in_flight") == 1, 5, "a held request")
    client.submit(post, engine, DEADLY)
    answer = held.result(5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "decode_failed")
    assert engine.wait(10) == 70
    eventually_now(lambda: not leaders.cluster.instance_keys(engine.instance_id), 2, "withdrawn")
    assert departure(leaders, engine) == "died"


def test_a_decode_leg_finds_its_prefill_rank_in_the_keyspace(leaders: Leaders) -> None:
    prefill, decode = leaders.start("prefill"), leaders.start("decode")
    prefill.wait_ready()
    decode.wait_ready()
    leg = {**leaders.cluster.bootstrap(prefill), "bootstrap_room": 77}
    headers = {
        "x-pdcore-prefill-incarnation": prefill.incarnation,
        "x-pdcore-decode-incarnation": decode.incarnation,
    }
    assert post(prefill, SHORT | leg, **headers).json()["accepted"] is True
    answer = post(decode, SHORT | leg, **headers)
    assert (answer.status_code, answer.headers["x-pdcore-kv"]) == (200, "received")
    assert answer.json()["bootstrap_room"] == 77
    began = time.monotonic()
    stale = post(decode, SHORT | leg, **{"x-pdcore-prefill-incarnation": "unknown"})
    assert (stale.status_code, stale.headers["x-pdcore-refused"]) == (421, "stale")
    assert 0.4 < time.monotonic() - began < 2


def test_a_prefill_that_chooses_its_rank_tells_decode_and_the_bootstrap_port(leaders: Leaders) -> None:
    prefill, decode = leaders.start("prefill", "--dp-rank-choice", "engine"), leaders.start("decode")
    prefill.wait_ready()
    decode.wait_ready()
    leg = {**leaders.cluster.bootstrap(prefill), "bootstrap_room": 77}
    assert post(prefill, SHORT | leg).json()["accepted"] is True
    assert post(decode, SHORT | leg).headers["x-pdcore-kv"] == "received"
    assert post(decode, SHORT | leg | {"bootstrap_room": 78, "disagg_prefill_dp_rank": 0}).status_code == 200
    bootstrap = f"http://127.0.0.1:{leg['bootstrap_port']}/bootstrap"
    assert httpx.get(f"{bootstrap}/health", trust_env=False).json() == {"status": "ok", "ready": True}
    table = httpx.get(f"{bootstrap}/route", trust_env=False).json()
    assert table["ranks"] == {"0,0,0": {"rank_ip": "127.0.0.1", "rank_port": 4321}}
    assert (table["block_size"], table["kv_cache_dtype"], table["max_prefill_tokens"]) == (16, "float32", 512)
    rooms = count(79)

    def is_told() -> bool:
        """A room is forgotten soon after its end, so a busy machine may need more than one."""
        room = next(rooms)
        assert post(prefill, SHORT | leg | {"bootstrap_room": room}).json()["accepted"] is True
        asked = httpx.post(f"{bootstrap}/query_dp_ranks", json=[room, 78], trust_env=False).json()
        assert asked in ({str(room): 0, "78": -1}, {str(room): -1, "78": -1})
        return bool(asked[str(room)] == 0)

    eventually_now(is_told, 20, "the rank of a room that has just ended")


def test_it_waits_for_the_store_saying_so(tmp_path: Path, model: Path) -> None:
    with etcd_server(started=False) as etcd:
        leaders = Leaders(etcd, tmp_path, model)
        try:
            engine = leaders.start("unified")
            eventually_now(lambda: engine.get("/health") is not None, 20, "HTTP")
            health = engine.get("/health")
            assert health is not None
            assert (health.status_code, health.json()["status"]) == (200, "starting")
            eventually_now(lambda: "store does not answer" in _ready_text(engine), 15, "/ready to say why")
            assert post(engine, SHORT).headers["x-pdcore-refused"] == "not_ready"
            assert "leader waiting" in engine.output()
            etcd.start()
            engine.wait_ready(20)
        finally:
            leaders.close()


def _ready_text(engine: Engine) -> str:
    answer = engine.get("/ready")
    return "" if answer is None else answer.text


def test_what_cannot_work_is_one_line(leaders: Leaders, tmp_path: Path) -> None:
    engine = leaders.start("unified", model=tmp_path / "missing")
    assert "--model / PDCORE_MODEL" in refusal(engine)
    assert len(engine.output().strip().splitlines()) == 1


def test_a_rank_that_refuses_to_start_ends_the_leader(leaders: Leaders, model: Path, tmp_path: Path) -> None:
    link = tmp_path / "broken"
    os.symlink(model, link)
    engine = leaders.start("unified", model=link)
    assert "the model is broken" in refusal(engine)
    assert leaders.cluster.instance_keys(engine.instance_id) == []


def test_a_rank_that_serves_something_else_than_its_instance_is_refused(leaders: Leaders) -> None:
    engine = leaders.start("unified", "--block-size", "32")
    assert "rank 0.0.0: block_sizes is [16], the instance was started with 32" in refusal(engine)
    assert leaders.cluster.instance_keys(engine.instance_id) == []


@pytest.mark.cluster
def test_the_newest_start_holds_the_instance(leaders: Leaders) -> None:
    one = ("--instance-id", "one")
    killed = leaders.start("unified", *one).wait_ready()
    old, processes = killed.incarnation, children(killed)
    killed.kill()
    first = leaders.start("unified", *one, port=killed.port).wait_ready()
    assert first.incarnation != old
    assert leaders.cluster.keyspace()["instances/one"]["incarnation"] == first.incarnation
    eventually_now(lambda: not alive(processes), 5, "no orphans")

    assert "one" in refusal(leaders.start("unified", *one)).splitlines()[-1]
    assert first.is_ready()
    second = leaders.start("unified", *one, "--take-over", "true").wait_ready()
    assert first.wait(10) == 3
    assert leaders.cluster.keyspace()["instances/one"]["incarnation"] == second.incarnation


def test_a_picked_port_is_advertised_and_a_second_signal_ends_it_now(
    leaders: Leaders, client: ThreadPoolExecutor
) -> None:
    engine = leaders.start("unified", "--port", "0", "--drain-timeout-s", "60")
    record = eventually_now(lambda: serving_record(leaders), 30, "a serving record")
    engine.url = record["url"]
    port = engine.url.rsplit(":", 1)[1]
    health = engine.get("/health")
    assert health is not None
    assert health.json()["instance_id"] == f"unified-127.0.0.1-{port}"

    processes = children(engine)
    client.submit(post, engine, SILENT)
    eventually_now(lambda: engine.gauge("pdcore_engine_http_in_flight") == 1, 5, "a held request")
    engine.signal(signal.SIGTERM)
    eventually_now(lambda: "leader draining" in engine.output(), 5, "draining")
    engine.signal(signal.SIGINT)
    assert engine.wait(2) == 128 + signal.SIGINT
    eventually_now(lambda: not alive(processes), 5, "no orphans")


def test_a_leader_loads_no_tensor_library() -> None:
    code = "import pdcore.engine.command, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
