"""The doctor on real servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pdcore.config import StoreAccess
from pdcore.errors import StoreRefused
from pdcore.registry.connect import open_store
from pdcore.registry.doctor.examine import examine_redis, examine_store
from pdcore.registry.doctor.finding import Finding, is_failed
from pdcore.registry.store import Put
from pdcore.topology.keys import Keyspace
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually
from tests.support.processes import free_port
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.integration

SPACE = Keyspace(cluster="examined")


def access(url: str, timeout_s: float = 3) -> StoreAccess:
    return StoreAccess(url=url, timeout_s=timeout_s)


def by_subject(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    """The last finding about each thing."""
    return {finding.about: finding for finding in findings}


@pytest.fixture
def small_etcd() -> Iterator[EtcdServer]:
    with etcd_server(extra=("--quota-backend-bytes", str(4 << 20))) as server:
        yield server


def compact(etcd: EtcdServer, revision: str) -> None:
    control = ["etcdctl", "--endpoints", etcd.endpoint, "compact", revision]
    subprocess.run(
        control, env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True, timeout=10
    )


async def test_a_healthy_etcd_is_used_and_nothing_stays(shared_etcd: EtcdServer) -> None:
    found = by_subject(await examine_store(access(shared_etcd.url), SPACE))
    assert {name for name in found if found[name].level == "fail"} == set()
    assert {"reachable", "alarms", "leader", "members", "version", "size", "put", "event"} <= found.keys()
    async with open_store(access(shared_etcd.url)) as store:
        assert not (await store.list(SPACE.root)).entries


async def test_a_compacted_etcd_is_told_from_one_that_keeps_everything(small_etcd: EtcdServer) -> None:
    assert (
        "not needed yet" in by_subject(await examine_store(access(small_etcd.url), SPACE))["compaction"].says
    )
    compact(small_etcd, "4")
    assert "is compacted" in by_subject(await examine_store(access(small_etcd.url), SPACE))["compaction"].says


async def test_a_full_etcd_is_found_by_its_alarm_and_by_use(small_etcd: EtcdServer) -> None:
    async with open_store(access(small_etcd.url)) as store:
        with suppress(StoreRefused):
            for number in range(8):
                await store.commit((), (Put(f"/filler/{number}", b"x" * 1_000_000),))

    async def examined() -> dict[str, Finding] | None:
        found = by_subject(await examine_store(access(small_etcd.url), SPACE))
        return found if found["alarms"].level == "fail" else None

    found = await eventually(examined, 10, "the alarm")
    assert found is not None
    assert found["alarms"].says.startswith("NOSPACE")
    assert found["use"].level == "fail"


async def test_an_etcd_that_is_not_there_is_one_finding() -> None:
    findings = await examine_store(access(f"etcd://127.0.0.1:{free_port()}", 0.5), SPACE)
    assert [finding.about for finding in findings if finding.level == "fail"] == ["reachable"]
    assert is_failed(findings)


async def test_a_redis_that_holds_the_fleet_is_used_and_says_what_it_does_not_promise() -> None:
    with redis_server() as server:
        findings = await examine_store(access(server.url), SPACE)
        async with open_store(access(server.url)) as store:
            assert not (await store.list(SPACE.root)).entries
    found = by_subject(findings)
    assert not is_failed(findings)
    assert {"version", "role", "persistence", "memory", "access", "put", "event"} <= found.keys()
    assert "fail-over" in found["fencing"].says


async def test_a_redis_beside_the_keyspace_is_examined() -> None:
    with redis_server() as server:
        found = by_subject(await examine_redis(access(server.url), "redis", keyspace=False))
    assert found["version"].level == found["role"].level == found["memory"].level == "ok"
    gone = await examine_redis(access(f"redis://127.0.0.1:{free_port()}", 0.5), "redis", keyspace=False)
    assert [(finding.about, finding.level) for finding in gone] == [("reachable", "fail")]
