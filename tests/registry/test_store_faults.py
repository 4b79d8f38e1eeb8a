"""Faults of real stores at a small size: every acknowledged change is told once, and the view ends equal to the store.

The whole matrix, with registrars and routers, is ``tests/cluster/test_store_failures.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdcore.beside import running_beside
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.watch import Patience
from pdcore.registry.follower import Follower
from pdcore.topology import keys
from pdcore.topology.keys import Keyspace
from tests.support.account import WITHIN_S, Account
from tests.support.etcd_cluster import EtcdCluster, restore_snapshot
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.network import Relay

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEYSPACE = Keyspace(cluster="faults")
SOON = Patience(ping_s=0.3, answer_s=0.5)


@asynccontextmanager
async def followed(store: EtcdStore, admin: EtcdStore) -> AsyncIterator[Account]:
    """A writer on ``admin`` and a follower on ``store``, at work."""
    account = Account.of(admin, KEYSPACE, Follower(store, KEYSPACE))
    async with store, admin, account.follower, running_beside(account.writer.run()):
        await account.warm_up()
        yield account


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as cluster:
        yield cluster


async def test_members_killed_and_stopped_in_turn_cost_no_change(three: EtcdCluster) -> None:
    store = EtcdStore(three.endpoints, timeout_s=3.0, first=0, patience=SOON)
    async with followed(store, EtcdStore(three.endpoints, timeout_s=1.0)) as account:
        three.members[0].kill()
        await account.goes_on(time.monotonic())
        await asyncio.to_thread(three.members[0].start)
        for member in three.members:
            member.pause()
            await account.goes_on(time.monotonic())
            member.resume()
        result = await account.close()
        assert (result.lost, result.duplicated) == (0, 0)
        assert (account.follower.relists_total, account.follower.repairs_total) == (0, 0)


@pytest.mark.parametrize("by_the_runbook", [True, False])
async def test_a_restored_snapshot_that_was_written_on_is_told_as_the_difference(
    own_etcd: EtcdServer, tmp_path: Path, by_the_runbook: bool
) -> None:
    snapshot, admin = tmp_path / "snapshot", EtcdStore((own_etcd.endpoint,), timeout_s=1.0)
    async with (
        Relay.to(own_etcd.endpoint) as relay,
        followed(EtcdStore((relay.endpoint,), timeout_s=1.0), admin) as account,
    ):
        await asyncio.to_thread(own_etcd.etcdctl, "snapshot", "save", str(snapshot))
        await account.goes_on(time.monotonic())
        await account.start_afresh()
        follower, followed_to = account.follower, account.follower.topology.revision
        relay.refuse()
        await asyncio.to_thread(own_etcd.stop)
        await asyncio.to_thread(restore_snapshot, snapshot, own_etcd)
        await asyncio.to_thread(own_etcd.start)
        if by_the_runbook:
            await asyncio.to_thread(own_etcd.etcdctl, "del", KEYSPACE.view + keys.STORE_ID)
        await account.write_beyond(followed_to)
        relay.allow()
        await eventually(lambda: follower.relists_total + follower.repairs_total, WITHIN_S, "it is told")
        await account.close()
        expected = (1, 0) if by_the_runbook else (0, 1)
        assert (follower.relists_total, follower.repairs_total) == expected
