"""An instance of two machines: two parents here, real but for their ranks, which compute nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.cluster import Engine
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually_now
from tests.support.leaders import Leaders
from tests.support.processes import free_port
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.cluster]

SILENT = {"prompt": [ord("!")], "max_tokens": 50}
TWO = ("--instance-id", "big", "--tp", "2", "--nnodes", "2", "--host", "127.0.0.1")
OTHER = ("--node-rank", "1")
START_S = 180.0


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
    with ThreadPoolExecutor(2) as pool:
        yield pool


def two_machines(leaders: Leaders) -> tuple[Engine, Engine]:
    """A leader that serves, and its follower, which was there first."""
    follower, leader = leaders.start("unified", *TWO, *OTHER), leaders.start("unified", *TWO)
    leader.instance_id = "big"
    return leader.wait_ready(START_S), follower


def descendants(*engines: Engine) -> list[psutil.Process]:
    return [child for engine in engines for child in psutil.Process(engine.pid).children(recursive=True)]


def all_gone(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def departure(leaders: Leaders) -> object:
    return leaders.cluster.keyspace().get("departures/big", {}).get("reason")


def test_it_registers_its_ranks_answers_no_http_and_ends_with_its_leader(leaders: Leaders) -> None:
    leader, follower = two_machines(leaders)
    keyspace = leaders.cluster.keyspace()
    assert {"instances/big", "ranks/big/0.0.0", "ranks/big/0.0.1"} <= keyspace.keys()
    incarnations = {keyspace[key]["incarnation"] for key in keyspace if key.startswith("ranks/big")}
    assert incarnations == {leader.incarnation}
    assert follower.get("/health") is None
    processes = descendants(leader, follower)
    leader.signal(signal.SIGTERM)
    assert (leader.wait(60), follower.wait(60)) == (0, 0)
    assert leaders.cluster.instance_keys("big") == []
    assert departure(leaders) == "left"
    eventually_now(lambda: all_gone(processes), 10, "no orphans")


def test_a_leader_that_is_killed_takes_its_other_machines_with_it(leaders: Leaders) -> None:
    leader, follower = two_machines(leaders)
    processes = descendants(leader, follower)
    leader.kill()
    assert follower.wait(60) == 70
    eventually_now(lambda: all_gone(processes), 10, "no orphans")
    eventually_now(lambda: leaders.cluster.instance_keys("big") == [], 10, "withdrawn")
    assert departure(leaders) == "died"


@pytest.mark.parametrize("victim", ["rank", "parent"])
def test_a_death_on_another_machine_ends_the_instance(
    victim: str, leaders: Leaders, client: ThreadPoolExecutor
) -> None:
    leader, follower = two_machines(leaders)
    held = client.submit(httpx.post, f"{leader.url}/generate", json=SILENT, timeout=30, trust_env=False)
    eventually_now(lambda: leader.gauge("pdcore_engine_http_in_flight") == 1, 10, "a held request")
    processes = descendants(leader, follower)
    if victim == "rank":
        fakes = [p for p in descendants(follower) if "tests.support.fake_rank" in p.cmdline()]
        fakes[0].kill()
    else:
        follower.kill()
    answer = held.result(20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "decode_failed")
    assert leader.wait(60) == 70
    if victim == "rank":
        assert follower.wait(60) == 70
    assert leaders.cluster.instance_keys("big") == []
    assert departure(leaders) == "died"
    eventually_now(lambda: all_gone(processes), 10, "no orphans")


def test_a_machine_started_with_other_sizes_is_refused_with_the_difference(leaders: Leaders) -> None:
    leaders.start("unified", *TWO)
    other = leaders.start("unified", *TWO, *OTHER, "--block-size", "32")
    assert other.wait(START_S) == 2
    assert "started with block_size=32; the leader has block_size=16" in other.output()


def test_without_the_store_a_follower_asks_the_leader_it_was_told_of(
    leaders: Leaders, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("machines-0123456789")
    known = ("--engine-token-file", str(token))
    leader = leaders.start("unified", *TWO, *known)
    nowhere = f"etcd://127.0.0.1:{free_port()}"
    told = (*known, "--store", nowhere, "--store-timeout-s", "0.5", "--leader", f"127.0.0.1:{leader.port}")
    follower = leaders.start("unified", *TWO, *OTHER, *told)
    eventually_now(lambda: "rank started" in follower.output(), START_S, "its ranks")
    eventually_now(lambda: "machine joined" in leader.output(), START_S, "joined")
    assert not leader.is_ready()
    follower.signal(signal.SIGTERM)
    assert follower.wait(30) == 0
    assert leader.wait(30) == 70
