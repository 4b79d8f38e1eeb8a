"""An engine that speaks the bootstrap protocol and nothing else, on a real etcd: registers, routes, loses its lease, loses a rank."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess, free_port

pytestmark = [pytest.mark.integration, pytest.mark.slow]

START_S = 30.0
WITHIN_S = 15.0
CALLS = httpx.Client(timeout=10, trust_env=False, verify=False)
ALONE = {"attn_tp_size": 1, "attn_dp_size": 1}


class Rank:
    """A foreign rank: a socket that listens, and its place in the layout."""

    def __init__(self, dp: int, tp: int) -> None:
        self.dp, self.tp = dp, tp
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def name(self) -> str:
        return f"{self.dp},0,{self.tp}"

    def body(self, **changes: Any) -> dict[str, Any]:
        """What the engine puts to ``register_rank``."""
        said = {
            **{"attn_tp_size": 2, "attn_tp_rank": self.tp, "attn_cp_size": 1, "attn_cp_rank": 0},
            **{"attn_dp_size": 2, "attn_dp_rank": self.dp},
            **{
                "rank_ip": "127.0.0.1",
                "rank_port": self.port,
                "block_size": 32,
                "kv_cache_dtype": "bfloat16",
            },
        }
        return said | changes

    def close(self) -> None:
        """Die."""
        self._listener.close()


class Facade:
    """``python -m pdcore.registry.facade`` with its store and what plain HTTP says of it."""

    def __init__(self, etcd: EtcdServer, directory: Path, cluster: str, *flags: str) -> None:
        self.etcd = etcd
        self.cluster = cluster
        self.port = free_port()
        arguments = [
            *(sys.executable, "-m", "pdcore.registry.facade", "--store", etcd.url, "--cluster", cluster),
            *("--instance-id", "p0", "--url", "http://127.0.0.1:1", "--model-name", "m"),
            *("--bootstrap-port", str(self.port), "--lease-ttl-s", "5", "--store-timeout-s", "1", *flags),
        ]
        self.process = ChildProcess(arguments, directory / f"facade-{self.port}.log")

    def wait_listening(self) -> None:
        try:
            eventually_now(
                lambda: self.health() is not None or not self.process.running, START_S, "listening"
            )
            assert self.process.running
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.process.output()[-4000:]}") from None

    def health(self) -> dict[str, Any] | None:
        try:
            health: dict[str, Any] = self.call("GET", "health").json()
        except httpx.TransportError:
            return None
        return health

    @property
    def is_ready(self) -> bool:
        health = self.health()
        return health is not None and bool(health["ready"])

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return CALLS.request(method, f"http://127.0.0.1:{self.port}/bootstrap/{path}", json=body)

    def register(self, rank: Rank, **changes: Any) -> httpx.Response:
        return self.call("PUT", "register_rank", rank.body(**changes))

    def etcdctl(self, *arguments: str) -> str:
        return subprocess.run(
            ["etcdctl", f"--endpoints={self.etcd.endpoint}", *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout

    def keys(self, below: str) -> dict[str, Any]:
        """What is stored below ``/pdcore/{cluster}/{below}``."""
        prefix = f"/pdcore/{self.cluster}/{below}"
        lines = self.etcdctl("get", "--prefix", prefix).splitlines()
        return {
            key.removeprefix(prefix): json.loads(value)
            for key, value in zip(lines[::2], lines[1::2], strict=True)
        }

    def lease_of(self, key: str) -> str:
        answer = json.loads(self.etcdctl("get", f"/pdcore/{self.cluster}/{key}", "-w", "json"))
        return f"{answer['kvs'][0]['lease']:x}"


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


@contextmanager
def facade(etcd: EtcdServer, directory: Path, *flags: str) -> Iterator[Facade]:
    some = Facade(etcd, directory, directory.name, *flags)
    with some.process:
        some.wait_listening()
        yield some


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    some = [Rank(dp, tp) for dp in range(2) for tp in range(2)]
    yield some
    for rank in some:
        rank.close()


def test_the_missions_calls_through_a_lease_loss_and_a_ranks_death(
    etcd: EtcdServer, tmp_path: Path, ranks: list[Rank]
) -> None:
    with facade(etcd, tmp_path) as served, ExitStack() as stack:
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


def test_ranks_are_accepted_while_the_store_is_away(tmp_path: Path, ranks: list[Rank]) -> None:
    with etcd_server(started=False) as etcd, facade(etcd, tmp_path) as served:
        for rank in ranks:
            assert served.register(rank).status_code == 200
        assert served.call("POST", "register_dp_rank", {"bootstrap_room": 7, "dp_rank": 1}).status_code == 200
        assert served.call("POST", "query_dp_ranks", [7, 8]).json() == {"7": 1, "8": -1}
        assert served.health() == {"status": "ok", "ready": False}
        etcd.start()
        eventually_now(lambda: served.is_ready, START_S, "ready")
        eventually_now(lambda: served.keys("side/rooms/p0/") == {"7": 1}, WITHIN_S, "the room stands")


def test_a_start_that_takes_over_ends_the_first(etcd: EtcdServer, tmp_path: Path) -> None:
    with facade(etcd, tmp_path) as first:
        eventually_now(lambda: first.etcdctl("get", f"/pdcore/{first.cluster}/side/claims/p0"), WITHIN_S)
        taking = Facade(etcd, tmp_path, tmp_path.name, "--take-over", "true")
        with taking.process, closing(Rank(0, 0)) as rank:
            assert first.register(rank, **ALONE).status_code == 200
            assert first.process.wait(START_S) == 3
            taking.wait_listening()
            assert taking.register(rank, **ALONE).status_code == 200
            eventually_now(lambda: taking.is_ready, WITHIN_S, "ready")
