"""A prefill engine that speaks the bootstrap protocol and nothing else, and the process that registers it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess, free_port

START_S: Final = 60.0
_calls: Final = httpx.Client(timeout=10, trust_env=False, verify=False)


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
        return _calls.request(method, f"http://127.0.0.1:{self.port}/bootstrap/{path}", json=body)

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


@contextmanager
def facade(etcd: EtcdServer, directory: Path, *flags: str) -> Iterator[Facade]:
    some = Facade(etcd, directory, directory.name, *flags)
    with some.process:
        some.wait_listening()
        yield some


@contextmanager
def four_ranks() -> Iterator[list[Rank]]:
    """Two DP ranks of two TP ranks each."""
    some = [Rank(dp, tp) for dp in range(2) for tp in range(2)]
    try:
        yield some
    finally:
        for rank in some:
            rank.close()
