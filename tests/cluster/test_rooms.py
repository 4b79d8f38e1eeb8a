"""Rooms and foreign engines in whole clusters: who chooses the DP rank, and a parent that comes before its store."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Router
from tests.support.etcd_server import etcd_server
from tests.support.eventually import eventually_now
from tests.support.foreign_engine import Facade, Rank, facade, four_ranks
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.cluster

START_S = 60.0
SLOW_START_S = 120.0
WITHIN_S = 15.0
ALONE = {"attn_tp_size": 1, "attn_dp_size": 1}
REQUESTS = 40


def complete(router: Router, number: int) -> int:
    body = {"model": "tiny", "prompt": f"number {number}", "max_tokens": 8, "temperature": 0}
    return router.post("/v1/completions", body).status_code


@pytest.mark.parametrize("where", ["store", "redis"])
def test_an_engine_that_chooses_its_dp_rank_serves_through_any_router(cluster: Cluster, where: str) -> None:
    with redis_server() as redis:
        flags = ("--redis", redis.url) if where == "redis" else ()
        prefill = cluster.engine("prefill", "--dp-rank-choice", "engine", *flags)
        decode, router = cluster.engine("decode", *flags), cluster.router()
        for process in (prefill, decode, router):
            process.wait_ready(SLOW_START_S)
        record = cluster.keyspace()[f"instances/{prefill.instance_id}"]
        assert (record["dp_rank_choice"], record["room_directory"]) == ("engine", where)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(partial(complete, router), range(REQUESTS))) == [200] * REQUESTS
        assert decode.gauge("pdcore_engine_handoffs_ok_total") == REQUESTS
        with redis.control() as control:
            assert bool(control.dbsize()) == (where == "redis")
        assert prefill.leftovers() == decode.leftovers() == {}


def test_who_looks_elsewhere_than_prefill_says_is_told_so(cluster: Cluster) -> None:
    with redis_server() as redis:
        prefill = cluster.engine("prefill", "--dp-rank-choice", "engine", "--redis", redis.url)
        decode, router = cluster.engine("decode"), cluster.router()
        for process in (prefill, decode, router):
            process.wait_ready(SLOW_START_S)
        answer = router.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2})
        assert answer.status_code == 503
        assert "give both the same --redis" in json.dumps(answer.json())


def test_ranks_are_accepted_while_the_store_is_away(tmp_path: Path) -> None:
    with etcd_server(started=False) as etcd, facade(etcd, tmp_path) as served, four_ranks() as ranks:
        for rank in ranks:
            assert served.register(rank).status_code == 200
        assert served.call("POST", "register_dp_rank", {"bootstrap_room": 7, "dp_rank": 1}).status_code == 200
        assert served.call("POST", "query_dp_ranks", [7, 8]).json() == {"7": 1, "8": -1}
        assert served.health() == {"status": "ok", "ready": False}
        etcd.start()
        eventually_now(lambda: served.is_ready, START_S, "ready")
        eventually_now(lambda: served.keys("side/rooms/p0/") == {"7": 1}, WITHIN_S, "the room stands")


def test_a_start_that_takes_over_ends_the_first(tmp_path: Path) -> None:
    with etcd_server() as etcd, facade(etcd, tmp_path) as first:
        eventually_now(lambda: first.etcdctl("get", f"/pdcore/{first.cluster}/side/claims/p0"), WITHIN_S)
        taking = Facade(etcd, tmp_path, tmp_path.name, "--take-over", "true")
        with taking.process, closing(Rank(0, 0)) as rank:
            assert first.register(rank, **ALONE).status_code == 200
            assert first.process.wait(START_S) == 3
            taking.wait_listening()
            assert taking.register(rank, **ALONE).status_code == 200
            eventually_now(lambda: taking.is_ready, WITHIN_S, "ready")
