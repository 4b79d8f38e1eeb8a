"""The commands about the past, on a real etcd, a real Redis and a real router."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.store import Delete, Put, Write
from pdcore.topology.keys import Keyspace, instance
from tests.group.small_fleet import fleet
from tests.registry.store_contract import compact_etcd
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess, free_port
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration

VIEW = Keyspace(cluster="default").view
WITHIN_S = 60.0


@dataclass
class Scene:
    """A router that writes the journal, and a fleet that changed: ``joined``, then ``lost``, then compaction."""

    etcd: EtcdServer
    redis: RedisServer
    router_url: str
    began_ms: int = 0
    joined: int = 0
    joined_ms: int = 0
    lost: int = 0

    def write(self, *writes: Write) -> int:
        """One transaction; return once the router has it and has written it down."""

        async def commit() -> int:
            async with open_store(StoreAccess(url=self.etcd.url, timeout_s=10)) as store:
                return (await store.commit((), writes)).revision

        revision = asyncio.run(commit())
        eventually_now(lambda: self.written(revision), WITHIN_S, f"revision {revision} written")
        return revision

    def written(self, revision: int) -> bool:
        url = f"{self.router_url}/pdcore/revision?at_least={revision}&timeout_s=10"
        if httpx.get(url, timeout=20, trust_env=False).status_code != 200:
            return False
        text = httpx.get(f"{self.router_url}/metrics", timeout=20, trust_env=False).text
        return "journal_lag_revisions 0.0" in text and "journal_error 0.0" in text


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with etcd_server() as etcd, redis_server() as redis:
        port = free_port()
        arguments = [sys.executable, "-m", "pdcore.router", "--port", str(port)]
        log = tmp_path_factory.mktemp("past") / "router.log"
        with ChildProcess([*arguments, "--store", etcd.url, "--redis", redis.url], log):
            scene = Scene(etcd, redis, f"http://127.0.0.1:{port}")
            eventually_now(lambda: listening(scene), WITHIN_S, "the router listens")
            scene.write(Put(VIEW + "routers/early", b"{}"))
            scene.began_ms = now_ms()
            scene.joined = scene.write(*(Put(VIEW + key, value) for key, value in fleet().items()))
            scene.joined_ms = now_ms()
            scene.lost = scene.write(Delete(VIEW + instance("p0")))
            compact_etcd(etcd.endpoint, scene.lost)
            yield scene


def listening(scene: Scene) -> bool:
    try:
        return scene.written(1)
    except httpx.TransportError:
        return False


def now_ms() -> int:
    """A moment of its own: the next change has a later one."""
    before = time.time_ns() // 1_000_000 + 1
    eventually_now(lambda: time.time_ns() // 1_000_000 > before, WITHIN_S)
    return before


def pdcore(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def iso(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms / 1000)) + f".{time_ms % 1000:03}+00:00"


def names(document: str) -> list[str]:
    return [one["instance_id"] for one in json.loads(document)["instances"]]


def test_topology_at_a_revision_beyond_compaction_comes_from_the_journal(past: Scene) -> None:
    store, journal = ("--store", past.etcd.url), ("--redis", past.redis.url)
    shown = pdcore("topology", *store, *journal, "--at", str(past.joined), "--json")
    assert shown.exit_code == 0, shown.output
    assert names(shown.output) == ["p0", "d0"]
    assert names(pdcore("topology", *store, "--at", str(past.lost), "--json").output) == ["d0"]
    refused = pdcore("topology", *store, "--at", str(past.joined))
    assert refused.exit_code == 1
    assert (
        refused.stderr == f"pdcore topology: revision {past.joined} is not kept any more; "
        f"the oldest that works is {past.lost}\n"
    )


def test_topology_at_a_time_comes_from_the_journal_or_from_a_router(past: Scene) -> None:
    for journal in ((), ("--redis", past.redis.url)):
        for time_ms, expected in ((past.began_ms, []), (past.joined_ms, ["p0", "d0"]), (now_ms(), ["d0"])):
            shown = pdcore("topology", "--store", past.etcd.url, *journal, "--at", iso(time_ms), "--json")
            assert shown.exit_code == 0, shown.output
            assert names(shown.output) == expected


def test_a_time_nobody_remembers_is_refused_with_the_oldest_that_works(past: Scene) -> None:
    refused = pdcore("topology", "--store", past.etcd.url, "--at", "-5h")
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    found = re.search(r"the oldest time that works is (\S+)$", line)
    assert found is not None, line
    shown = pdcore("topology", "--store", past.etcd.url, "--at", found[1], "--json")
    assert shown.exit_code == 0, shown.output


def test_without_any_clock_only_the_present_works(past: Scene) -> None:
    refused = pdcore("topology", "--store", past.etcd.url, "--cluster", "nobody", "--at", "-1s")
    assert refused.exit_code == 1
    assert "neither a journal nor a router keeps times, so only the present works" in refused.stderr


@pytest.mark.parametrize("at", ["tomorrow", "0", "2999-01-01"])
def test_a_moment_that_makes_no_sense_is_one_line_and_exit_2(past: Scene, at: str) -> None:
    refused = pdcore("topology", "--store", past.etcd.url, "--at", at)
    assert refused.exit_code == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("pdcore topology: --at: ")


def test_diff_says_what_differs(past: Scene) -> None:
    where = ("--store", past.etcd.url, "--redis", past.redis.url)
    shown = pdcore("topology", "diff", *where, str(past.joined), str(past.lost))
    assert shown.exit_code == 0, shown.output
    assert [line.split()[2:5] for line in shown.output.splitlines()] == [
        ["rank", "lost", "p0/0.0.0"],
        ["instance", "lost", "p0"],
    ]
    read = json.loads(pdcore("topology", "diff", *where, str(past.joined), str(past.lost), "--json").output)
    assert (read["from"], read["to"]) == (past.joined, past.lost)
    assert [event["event"] for event in read["events"]] == ["rank_lost", "instance_lost"]
    same = pdcore("topology", "diff", *where, str(past.lost), str(past.lost))
    assert same.output == f"Nothing differs between {past.lost} and {past.lost}.\n"
    backwards = pdcore("topology", "diff", *where, str(past.lost), str(past.joined))
    assert (backwards.exit_code, backwards.stderr.count("\n")) == (2, 1)
    assert f"REVISION1 ({past.lost}) must not be after REVISION2" in backwards.stderr


def test_events_are_lines_with_times_or_json(past: Scene) -> None:
    where = ("--store", past.etcd.url, "--redis", past.redis.url)
    shown = pdcore("events", *where, "--since", str(past.joined))
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.output.splitlines() if " p0" in line]
    assert [line.split()[3:6] for line in lines] == [["rank", "lost", "p0/0.0.0"], ["instance", "lost", "p0"]]
    assert all(re.match(r" *\d+ +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ", line) for line in lines)
    objects = [json.loads(line) for line in pdcore("events", *where, "--json").output.splitlines()]
    assert "instance_joined" in {one["event"] for one in objects}
    assert all("revision" in one and "time" in one for one in objects)


def test_events_that_nobody_reads_end_quietly(past: Scene) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    arguments = ("events", "--store", past.etcd.url, "--redis", past.redis.url, "--since", str(past.joined))
    with open(write_end, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "pdcore", *arguments],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("since", ["1", "99999"])
def test_events_since_a_revision_that_does_not_work_are_one_line(past: Scene, since: str) -> None:
    refused = pdcore("events", "--store", past.etcd.url, "--since", since)
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"pdcore events: revision {since} ")


def test_a_redis_that_is_away_is_named(past: Scene) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    refused = pdcore("events", "--store", past.etcd.url, "--redis", away)
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(
        f"pdcore events: cannot read the journal: redis at {away.removeprefix('redis://')}: "
    )


def test_events_go_on_over_a_restart_and_a_compaction_until_ctrl_c(past: Scene, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pdcore", "events", "-f", "--json", "--store", past.etcd.url]
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen(
            [*command, "--since", str(past.lost)], stdout=out, stderr=subprocess.PIPE, text=True
        ) as process,
    ):

        def shown() -> list[dict[str, object]]:
            return [json.loads(line) for line in (tmp_path / "out").read_text().splitlines(keepends=True)]

        def shows(key: str) -> bool:
            return any(one.get("router_id") == key for one in shown())

        try:
            record = fleet()["routers/r0"]
            past.write(Put(VIEW + "routers/one", record))
            eventually_now(lambda: shows("one"), WITHIN_S, "the first is shown")
            past.etcd.stop()
            past.etcd.start()
            last = past.write(Put(VIEW + "routers/two", record))
            compact_etcd(past.etcd.endpoint, last)
            eventually_now(lambda: shows("two"), WITHIN_S, "the second is shown")
            process.send_signal(signal.SIGINT)
            assert process.wait(WITHIN_S) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read()
    assert "Traceback" not in said
    assert "not following the store" in said
    routers = [
        one["router_id"] for one in shown() if one["event"] == "router_joined" and not one["coalesced"]
    ]
    assert routers == ["one", "two"], "each once"
