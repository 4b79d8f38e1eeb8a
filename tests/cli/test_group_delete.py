"""``pdcore group delete`` returns when the group is gone, says meanwhile who is not, and gives up in time; and a watch."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.config import StoreAccess
from pdcore.group.control.members import Member
from pdcore.group.control.slots import SlotWord, encode, key
from pdcore.registry.connect import open_store
from pdcore.registry.store import Delete, Put, Write
from pdcore.topology.keys import Keyspace
from tests.group.specs import group
from tests.support.etcd_server import EtcdServer, etcd_server

pytestmark = pytest.mark.integration

HELD = Member(1, "prefill", 1)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


class Place:
    """A cluster of its own with a saved group ``g`` that nobody runs."""

    def __init__(self, etcd: EtcdServer, cluster: str, tmp_path: Path) -> None:
        self._etcd = etcd
        self._keyspace = Keyspace(cluster=cluster)
        file = tmp_path / "group.yaml"
        file.write_text(json.dumps(group(disaggregation={"vendor": "nvidia"})))
        assert self.run("apply", str(file)).exit_code == 0

    def run(self, command: str, *arguments: str) -> Result:
        where = ("--store", self._etcd.url, "--cluster", self._keyspace.cluster)
        return CliRunner().invoke(main, ["group", command, *arguments, *where])

    def watched(self) -> subprocess.Popen[str]:
        where = ("--store", self._etcd.url, "--cluster", self._keyspace.cluster)
        return subprocess.Popen(
            [sys.executable, "-m", "pdcore", "group", "status", "g", "--watch", "--json", *where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hold(self) -> None:
        self._write(Put(key(self._keyspace, "g", HELD), encode(SlotWord(supervisor="somebody"))))

    def release(self) -> None:
        self._write(Delete(key(self._keyspace, "g", HELD)))

    @property
    def keys_left(self) -> int:
        async def count() -> int:
            async with open_store(StoreAccess(url=self._etcd.url, timeout_s=5)) as store:
                return len((await store.list(f"{self._keyspace.view}groups/")).entries)

        return asyncio.run(count())

    def _write(self, write: Write) -> None:
        async def once() -> None:
            async with open_store(StoreAccess(url=self._etcd.url, timeout_s=5)) as store:
                assert (await store.commit((), (write,))).succeeded

        asyncio.run(once())


def test_a_group_that_nobody_runs_is_gone_when_the_command_returns(etcd: EtcdServer, tmp_path: Path) -> None:
    place = Place(etcd, "nobody", tmp_path)
    done = place.run("delete", "g", "--yes")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "group g is gone")
    assert done.stderr.splitlines() == ["g: nobody has still to leave"]
    assert place.keys_left == 0


def test_who_has_still_to_leave_is_named_and_waited_for(etcd: EtcdServer, tmp_path: Path) -> None:
    place = Place(etcd, "held", tmp_path)
    place.hold()
    given_up = place.run("delete", "g", "--yes", "--within-s", "0.5")
    assert given_up.exit_code == 1
    still = "g: 1 still to leave: g-1-prefill-1"
    assert given_up.stderr.splitlines() == [
        still,
        f"pdcore group delete: g is not gone after 0.5 s: {still}",
    ]
    leaving = threading.Timer(1.0, place.release)
    leaving.start()
    done = place.run("delete", "g", "--yes", "--within-s", "20")
    leaving.join()
    assert (done.exit_code, done.stderr.splitlines()) == (0, [still, "g: nobody has still to leave"])
    assert place.keys_left == 0


def test_who_does_not_want_to_wait_is_told_at_once(etcd: EtcdServer, tmp_path: Path) -> None:
    place = Place(etcd, "told", tmp_path)
    place.hold()
    done = place.run("delete", "g", "--yes", "--no-wait")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("group g ends")
    assert place.keys_left


def test_a_group_that_is_not_there_is_exit_2(etcd: EtcdServer, tmp_path: Path) -> None:
    assert Place(etcd, "other", tmp_path).run("delete", "h", "--yes").exit_code == 2


def test_a_watch_that_is_interrupted_ends_without_a_word(etcd: EtcdServer, tmp_path: Path) -> None:
    with Place(etcd, "watched", tmp_path).watched() as watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["state"] == "pending"
        watch.send_signal(signal.SIGINT)
        _, said = watch.communicate(timeout=20)
    assert (watch.returncode, said) == (130, "")
