"""The runbooks of the operating page, run as they are written, on a real etcd with a follower watching."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from pdcore.errors import StoreError, StoreRefused
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.follower import Follower
from pdcore.registry.store import Delete, Put
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from tests.support.etcd_server import etcd_server, require_etcd
from tests.support.eventually import eventually
from tests.support.fleet import complete, instance_record
from tests.support.pages import DOCS, fenced, sections
from tests.support.processes import ChildProcess, free_port

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECTIONS: Final = sections((DOCS / "operating-etcd.md").read_text(encoding="utf-8"))
SPACE: Final = Keyspace(cluster="default")
QUICK: Final = ("--heartbeat-interval", "50", "--election-timeout", "500")


class Ports:
    """The page's addresses, and those they stand for here."""

    def __init__(self, public: int) -> None:
        self.public = public
        self._instead = {"2379": public, "2380": free_port(), "12379": free_port()}

    @property
    def private(self) -> int:
        return self._instead["12379"]

    def here(self, text: str) -> str:
        for port in ("12379", "2379", "2380"):
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self._instead[port]}")
        return text


def run(script: str, directory: Path, endpoint: str) -> str:
    environ = {**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": endpoint}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def server(line: str, directory: Path) -> ChildProcess:
    """A server that the page starts, in ``directory``."""
    program, *arguments = shlex.split(line.replace("--data-dir ", f"--data-dir {directory}/"))
    assert program == "etcd"
    return ChildProcess((require_etcd(), *arguments, *QUICK, "--logger", "zap"), directory / "restored.log")


async def write(store: EtcdStore, **instances: str) -> None:
    """Instances by name and incarnation."""
    for name, incarnation in instances.items():
        found = complete(name, instance_record(incarnation=incarnation))
        puts = (Put(SPACE.view + key, codec.encode(record)) for key, record in found.items())
        await store.commit((), tuple(puts))


async def listed(endpoint: str) -> Mapping[str, bytes]:
    async with EtcdStore((endpoint,), timeout_s=2) as store:
        entries = (await store.list(SPACE.view)).entries
        return {key.removeprefix(SPACE.view): stored.value for key, stored in entries.items()}


async def test_a_snapshot_restored_by_the_book_is_a_new_store_to_everybody(tmp_path: Path) -> None:
    (save,) = fenced(SECTIONS["Back up"], "sh")
    restore, forget = fenced(SECTIONS["Restore a snapshot"], "sh")
    start_apart, open_up = fenced(SECTIONS["Restore a snapshot"], "server")
    with etcd_server() as etcd:
        ports = Ports(etcd.port)
        async with EtcdStore((etcd.endpoint,), timeout_s=2) as store, Follower(store, SPACE) as follower:
            await write(store, kept="one", restarted="old")
            await eventually(lambda: "restarted" in follower.topology.instances, 5, "followed")
            first_id = follower.topology.store_id
            run(save, tmp_path, etcd.endpoint)
            await write(store, restarted="new", lost="one")
            await eventually(lambda: "lost" in follower.topology.instances, 5, "followed")
            etcd.kill()
            run(ports.here(restore), tmp_path, etcd.endpoint)
            with server(ports.here(start_apart), tmp_path) as apart:
                await eventually(lambda: answers(ports.private), 10, "the restored etcd")
                assert (
                    json.dumps(first_id).encode() == (await listed(f"127.0.0.1:{ports.private}"))["store_id"]
                )
                run(ports.here(forget), tmp_path, "127.0.0.1:1")
                assert "store_id" not in await listed(f"127.0.0.1:{ports.private}")
                apart.stop()
            with server(ports.here(open_up), tmp_path):
                await eventually(lambda: follower.topology.store_id != first_id, 20, "another store")
                topology = follower.topology
                assert topology.instances.keys() == {"kept", "restarted"}
                assert topology.instances["restarted"].incarnation == "old"
                assert {key: one.value for key, one in topology.keys.items()} == await listed(etcd.endpoint)
                assert follower.statistics().relists_total >= 1


async def answers(port: int) -> bool:
    try:
        async with asyncio.timeout(2):
            return await listed(f"127.0.0.1:{port}") is not None
    except (StoreError, TimeoutError):
        return False


async def test_a_full_etcd_takes_puts_again_after_the_runbook(tmp_path: Path) -> None:
    (mend,) = fenced(SECTIONS["When it is full"], "sh")
    with etcd_server(extra=("--quota-backend-bytes", str(4 << 20))) as etcd:
        async with EtcdStore((etcd.endpoint,), timeout_s=5) as store:

            async def is_full() -> bool:
                try:
                    await store.commit((), (Put("/filler", b"x" * 1_000_000),))
                except StoreRefused:
                    return True
                return False

            await eventually(is_full, 20, "full")
            await store.commit((), (Delete("/filler"),))
            run(mend, tmp_path, etcd.endpoint)
            assert (await store.commit((), (Put("/again", b"1"),))).succeeded


async def test_the_role_of_the_page_suffices_for_the_cluster_and_nothing_else(tmp_path: Path) -> None:
    (grant,) = fenced(SECTIONS["Set it up"], "sh")
    with etcd_server() as etcd:
        run(grant, tmp_path, etcd.endpoint)
        run("etcdctl user add root:root && etcdctl auth enable", tmp_path, etcd.endpoint)
        login = "etcdctl --user pdcore:secret"
        run(f"{login} put /pdcore/default/view/x 1", tmp_path, etcd.endpoint)
        with pytest.raises(AssertionError, match="permission denied"):
            run(f"{login} put /pdcore/other/view/x 1", tmp_path, etcd.endpoint)
