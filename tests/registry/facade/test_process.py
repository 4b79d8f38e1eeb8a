"""An engine that speaks the bootstrap protocol and nothing else, on a real etcd: registers, routes, loses its lease, loses a rank."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually_now
from tests.support.foreign_engine import Rank, facade, four_ranks

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WITHIN_S = 15.0


def test_the_missions_calls_through_a_lease_loss_and_a_ranks_death(
    shared_etcd: EtcdServer, tmp_path: Path
) -> None:
    with facade(shared_etcd, tmp_path) as served, four_ranks() as ranks, ExitStack() as stack:
        assert served.health() == {"status": "ok", "ready": False}
        for rank in ranks:
            unready = served.call("GET", "route")
            assert (unready.status_code, unready.json()) == (503, {"detail": "bootstrap ranks not ready"})
            answer = served.register(rank)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        eventually_now(lambda: served.is_ready, WITHIN_S, "ready")
        table = {
            "attn_tp_size": 2,
            "attn_cp_size": 1,
            "dp_size": 2,
            "pp_size": 1,
            "block_size": 32,
            "block_sizes": [32],
            "kv_cache_dtype": "bfloat16",
            "max_prefill_tokens": None,
            "ranks": {rank.name: {"rank_ip": "127.0.0.1", "rank_port": rank.port} for rank in ranks},
        }
        assert served.call("GET", "route").json() == table
        instance = served.keys("view/instances/")["p0"]
        assert (instance["state"], instance["role"], instance["dp_size"]) == ("serving", "prefill", 2)

        rooms = {7: 1, 8: 0, (1 << 63) - 1: 1}
        for room, dp_rank in rooms.items():
            said = served.call("POST", "register_dp_rank", {"bootstrap_room": room, "dp_rank": dp_rank})
            assert said.json() == {"status": "ok"}
        wanted = {"7": 1, "8": 0, str((1 << 63) - 1): 1, "99": -1}
        asked = [7, 8, (1 << 63) - 1, 99]
        assert served.call("POST", "query_dp_ranks", {"bootstrap_rooms": asked}).json() == wanted
        assert served.call("POST", "query_dp_ranks", asked).json() == wanted
        eventually_now(
            lambda: served.keys("side/rooms/p0/") == {str(r): d for r, d in rooms.items()}, WITHIN_S
        )

        for key in ("view/instances/p0", "side/rooms/p0/7"):
            served.etcdctl("lease", "revoke", served.lease_of(key))
        assert served.call("GET", "route").json() == table
        assert served.call("POST", "query_dp_ranks", asked).json() == wanted
        eventually_now(lambda: len(served.keys("view/ranks/p0/")) == 4, WITHIN_S, "registered again")
        assert served.call("GET", "route").json() == table

        dead, *rest = ranks
        dead.close()
        eventually_now(lambda: not served.is_ready, WITHIN_S, "not ready")
        assert served.call("GET", "route").status_code == 503
        eventually_now(lambda: len(served.keys("view/ranks/p0/")) == 3, WITHIN_S, "withdrawn")
        assert served.call("POST", "query_dp_ranks", asked).json() == wanted
        back = Rank(dead.dp, dead.tp)
        stack.callback(back.close)
        assert served.register(back).status_code == 200
        eventually_now(lambda: served.is_ready, WITHIN_S, "ready again")
        assert served.call("GET", "route").json()["ranks"] == {
            rank.name: {"rank_ip": "127.0.0.1", "rank_port": rank.port} for rank in (back, *rest)
        }

        served.process.signal(signal.SIGTERM)
        assert served.process.wait(WITHIN_S) == 0
        assert served.keys("view/departures/")["p0"]["reason"] == "left"
        assert served.keys("view/ranks/") == served.keys("side/rooms/") == {}
