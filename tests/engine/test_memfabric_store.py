"""The store that memfabric before 1.2 needs, as a process: its address stands while it lives, and leaders find it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcore.engine.memfabric_store.serving import find
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.topology.keys import Keyspace
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually, eventually_now
from tests.support.processes import ChildProcess, free_port

pytestmark = pytest.mark.cluster

KEYSPACE = Keyspace(cluster="test")
LIBRARY = """
import socket, urllib.parse

def create_config_store(url):
    global kept
    where = urllib.parse.urlsplit(url)
    try:
        kept = socket.create_server((where.hostname, where.port))
    except OSError:
        return 3
    return 0
"""


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


def process(tmp_path: Path, etcd: EtcdServer, port: int, library: str = LIBRARY) -> ChildProcess:
    packages = tmp_path / "packages"
    packages.mkdir(exist_ok=True)
    (packages / "memfabric_hybrid.py").write_text(library)
    arguments = [
        *(sys.executable, "-m", "pdcore.engine.memfabric_store", "--store", etcd.url, "--cluster", "test"),
        *("--port", str(port), "--lease-ttl-s", "5"),
    ]
    path = f"{packages}:{os.environ.get('PYTHONPATH', '')}"
    return ChildProcess(arguments, tmp_path / f"{port}.log", environ={"PYTHONPATH": path})


async def test_its_address_stands_while_it_lives(tmp_path: Path, etcd: EtcdServer) -> None:
    port, other = free_port(), free_port()
    async with EtcdStore((etcd.endpoint,), timeout_s=3) as store:
        assert await find(store, KEYSPACE) is None
        with process(tmp_path, etcd, port) as first:
            await eventually(lambda: first.running and find(store, KEYSPACE), 30, "the address")
            assert await find(store, KEYSPACE) == f"tcp://127.0.0.1:{port}"
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
            first.kill()
            with process(tmp_path, etcd, other) as second:

                async def moved() -> bool:
                    return await find(store, KEYSPACE) == f"tcp://127.0.0.1:{other}"

                await eventually(moved, 30, "the address of whoever took over")
                await asyncio.to_thread(second.stop)
                assert second.returncode == 0
                assert await find(store, KEYSPACE) is None


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ("raise OSError('libascendcl.so: cannot open')", "libascendcl.so: cannot open"),
        ("def create_config_store(url): return 3", "it answered 3"),
    ],
)
def test_what_cannot_work_is_a_line_and_exit_status_2(
    tmp_path: Path, etcd: EtcdServer, library: str, says: str
) -> None:
    with process(tmp_path, etcd, free_port(), library) as child:
        eventually_now(lambda: not child.running, 30, "its end")
        assert child.returncode == 2
        assert says in child.output().strip().splitlines()[-1]


async def test_a_store_that_is_away_says_nothing_and_delays_nobody(etcd: EtcdServer) -> None:
    async with EtcdStore((etcd.endpoint,), timeout_s=1) as store:
        etcd.stop()
        async with asyncio.timeout(5):
            assert await find(store, KEYSPACE) is None
