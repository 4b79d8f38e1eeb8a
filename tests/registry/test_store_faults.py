"""Faults of real stores at a small size: every acknowledged change is told once, and the view ends equal to the store.

The whole matrix, with registrars and routers, is ``tests/cluster/test_store_failures.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdcore.beside import running_beside
from pdcore.errors import StoreError
from pdcore.registry.etcd.driver import EtcdStore
from pdcore.registry.etcd.watch import Patience
from pdcore.registry.follower import Follower
from pdcore.registry.store import Store
from pdcore.topology import keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import build
from tests.support.account import Balance, Witness, Writer, balance
from tests.support.etcd_cluster import EtcdCluster, restore_snapshot
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.network import Relay

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEYSPACE = Keyspace(cluster="faults")
WITHIN_S = 20.0
SOON = Patience(ping_s=0.3, answer_s=0.5)


@dataclass(slots=True)
class Scene:
    """A writer and a follower at work."""

    admin: Store
    follower: Follower
    witness: Witness
    writer: Writer

    async def goes_on(self, since: float) -> None:
        """Wait until a write acknowledged after ``since`` is told."""

        def told() -> bool:
            write = self.writer.acknowledged.get(self.witness.newest)
            return write is not None and write.at >= since

        await eventually(told, WITHIN_S, "a later write is told")

    async def concludes(self) -> Balance:
        """Stop writing; the view becomes what a fresh list tells."""
        self.writer.paused = True
        await eventually(self._view_is_the_stores, WITHIN_S, "the view equals a fresh list")
        return balance(self.writer.acknowledged, self.witness)

    async def _view_is_the_stores(self) -> bool:
        try:
            snapshot = await self.admin.list(KEYSPACE.view)
        except StoreError:
            return False
        listed = {key.removeprefix(KEYSPACE.view): stored for key, stored in snapshot.entries.items()}
        return self.follower.last_error is None and build(listed, 0) == self.follower.topology


@asynccontextmanager
async def scene(store: EtcdStore, admin: EtcdStore) -> AsyncIterator[Scene]:
    witness = Witness()
    follower, writer = Follower(store, KEYSPACE), Writer(admin, KEYSPACE)
    follower.subscribe(witness)
    async with store, admin, follower, running_beside(writer.run()):
        await eventually(lambda: len(witness.joined) > 10, WITHIN_S, "everything at work")
        yield Scene(admin, follower, witness, writer)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path) as cluster:
        yield cluster


async def test_members_killed_and_stopped_in_turn_cost_no_change(three: EtcdCluster) -> None:
    store = EtcdStore(three.endpoints, timeout_s=3.0, first=0, patience=SOON)
    async with scene(store, EtcdStore(three.endpoints, timeout_s=1.0)) as played:
        three.members[0].kill()
        await played.goes_on(time.monotonic())
        await asyncio.to_thread(three.members[0].start)
        for member in three.members:
            member.pause()
            await played.goes_on(time.monotonic())
            member.resume()
        result = await played.concludes()
        assert (result.lost, result.duplicated) == (0, 0)
        assert (played.follower.relists_total, played.follower.repairs_total) == (0, 0)


@pytest.mark.parametrize("by_the_runbook", [True, False])
async def test_a_restored_snapshot_that_was_written_on_is_told_as_the_difference(
    own_etcd: EtcdServer, tmp_path: Path, by_the_runbook: bool
) -> None:
    async with Relay.to(own_etcd.endpoint) as relay:
        admin = EtcdStore((own_etcd.endpoint,), timeout_s=1.0)
        async with scene(EtcdStore((relay.endpoint,), timeout_s=1.0), admin) as played:
            await asyncio.to_thread(own_etcd.etcdctl, "snapshot", "save", str(tmp_path / "snapshot"))
            await played.goes_on(time.monotonic())
            await played.concludes()
            followed = played.follower.topology.revision
            relay.refuse()
            await asyncio.to_thread(own_etcd.stop)
            await asyncio.to_thread(restore_snapshot, tmp_path / "snapshot", own_etcd)
            await asyncio.to_thread(own_etcd.start)
            if by_the_runbook:
                await asyncio.to_thread(own_etcd.etcdctl, "del", KEYSPACE.view + keys.STORE_ID)
            await eventually(
                lambda: _written_beyond(followed, played.writer), WITHIN_S, "revisions overtaken"
            )
            relay.allow()
            follower = played.follower
            await eventually(lambda: follower.relists_total + follower.repairs_total, WITHIN_S, "told")
            await played.concludes()
            expected = (1, 0) if by_the_runbook else (0, 1)
            assert (follower.relists_total, follower.repairs_total) == expected


async def _written_beyond(revision: int, writer: Writer) -> bool:
    try:
        return (await writer.write()).revision > revision + 5
    except StoreError:
        return False
