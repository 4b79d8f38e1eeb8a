"""What is done to the store and the way to it: each function plays one fault on a stage of its own."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from pdcore.registry.etcd.identity import Identity
from pdcore.registry.store import Delete
from pdcore.topology import keys
from tests.cluster.stage import (
    BLIND_S,
    INSTANCE,
    KEYSPACE,
    TTL_S,
    Result,
    Stage,
    access_to,
    apart,
    impatient,
    one_member,
    one_member_behind_a_relay,
    reaching,
    staged,
    three_members,
)
from tests.registry.faulty_store import FaultyStore
from tests.registry.store_contract import compact_etcd
from tests.support.etcd_auth import PASSWORD, USER, add_user, switch_on
from tests.support.etcd_cluster import (
    EtcdCluster,
    reclaim_space,
    restore_snapshot,
)
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.network import Relay

RECONCILE_S: Final = 4.0
TOKEN_S: Final = 2
STORE_ID: Final = KEYSPACE.view + keys.STORE_ID


async def kill_and_restart(directory: Path, *, member: int) -> Result:
    async with three_members(directory) as (cluster, stage):
        cluster.members[member].kill()
        killed = time.monotonic()
        await stage.is_back(killed)
        await asyncio.sleep(2)
        await asyncio.to_thread(cluster.members[member].start)
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def stop_and_continue(directory: Path, *, member: int) -> Result:
    async with three_members(directory) as (cluster, stage):
        cluster.members[member].pause()
        await asyncio.sleep(20)
        cluster.members[member].resume()
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def restarted_with_data(directory: Path) -> Result:
    async with one_member(directory) as (server, stage):
        await asyncio.to_thread(server.kill)
        await stage.notices(BLIND_S)
        await asyncio.to_thread(server.start)
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def data_wiped(directory: Path) -> Result:
    async with one_member(directory) as (server, stage):
        await stage.account.start_afresh()
        before = stage.written_at()
        await asyncio.to_thread(server.stop)
        server.wipe()
        await asyncio.to_thread(server.start)
        stage.account.writer.paused = False
        await stage.keys_are_back(time.monotonic(), before)
        return await stage.conclude()


async def restored(directory: Path, *, by_the_runbook: bool) -> Result:
    """An older snapshot comes back, and is written to until its revisions are beyond what was followed."""
    async with one_member_behind_a_relay(directory) as (server, relay, stage):
        await asyncio.to_thread(server.etcdctl, "snapshot", "save", str(directory / "snapshot"))
        await asyncio.sleep(1)
        await stage.account.start_afresh()
        followed = stage.follower.topology.revision
        relay.refuse()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(restore_snapshot, directory / "snapshot", server)
        await asyncio.to_thread(server.start)
        if by_the_runbook:
            await asyncio.to_thread(server.etcdctl, "del", STORE_ID)
        await stage.account.write_beyond(followed)
        stage.account.writer.acknowledged.clear()
        opened = time.monotonic()
        relay.allow()
        stage.account.writer.paused = False
        await eventually(
            lambda: stage.follower.relists_total + stage.follower.repairs_total,
            10.0,
            "the difference is told",
        )
        stage.back_s = time.monotonic() - opened
        return await stage.conclude()


async def compacted_while_cut_off(directory: Path) -> Result:
    async with one_member_behind_a_relay(directory) as (server, relay, stage):
        relay.refuse()
        await stage.notices(BLIND_S)
        await asyncio.sleep(2)
        await asyncio.to_thread(compact_etcd, server.endpoint, (await stage.account.writer.write()).revision)
        relay.allow()
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def black_hole(directory: Path) -> Result:
    async with apart(EtcdCluster(directory)) as cluster, Relay.to(cluster.endpoints[0]) as relay:
        ways = (relay.endpoint, *cluster.endpoints[1:])
        admin, access = impatient(*cluster.endpoints), access_to(*ways)
        async with staged(directory, store=reaching(*ways), access=access, admin=admin) as stage:
            relay.pause()
            await asyncio.sleep(25)
            relay.resume()
            await stage.is_back(time.monotonic())
            return await stage.conclude()


async def without_quorum(directory: Path) -> Result:
    async with three_members(directory) as (cluster, stage):
        for member in cluster.members[1:]:
            member.pause()
        await stage.notices(BLIND_S)
        await asyncio.sleep(8)
        for member in cluster.members[1:]:
            member.resume()
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def leases_revoked(directory: Path) -> Result:
    async with one_member(directory) as (_, stage):
        before = stage.written_at()
        listed = await stage.account.admin.list("/pdcore/")
        leases = {stored.lease for stored in listed.entries.values() if stored.lease is not None}
        began = time.monotonic()
        await asyncio.gather(*(stage.account.admin.revoke(lease) for lease in leases))
        await stage.keys_are_back(began, before)
        return await stage.conclude()


async def keys_deleted(directory: Path) -> Result:
    async with one_member(directory) as (server, stage):
        before = stage.written_at()
        own = [key for key in (await stage.account.admin.list("/pdcore/")).entries if INSTANCE in key]
        assert len(own) == 3
        began = time.monotonic()
        for key in own:
            await asyncio.to_thread(server.etcdctl, "del", key)
        await stage.keys_are_back(began, before)
        return await stage.conclude()


async def no_space(directory: Path) -> Result:
    async with one_member(directory, "--quota-backend-bytes", str(4 << 20)) as (server, stage):
        await eventually(partial(_is_full, server), 20.0, "the space alarm")
        await eventually(
            lambda: "space exceeded" in (stage.account.writer.last_error or ""), 5.0, "puts refused"
        )
        newest, kept_until = stage.account.witness.newest, time.monotonic() + TTL_S + 2
        await stage.account.admin.commit((), (Delete(KEYSPACE.view + keys.router(newest)),))
        await stage.follower.wait_until(lambda view: newest not in view.routers, BLIND_S)
        written = len(stage.account.writer.acknowledged)
        while time.monotonic() < kept_until:
            assert stage.instance_stands(), "its lease is kept alive"
            assert stage.follower.last_error is None, "reads go on"
            await asyncio.sleep(0.1)
        assert len(stage.account.writer.acknowledged) == written, "every put is refused"
        await asyncio.to_thread(reclaim_space, server)
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def _is_full(server: EtcdServer) -> bool:
    filling = ("put", "/elsewhere", "x" * 100_000)
    try:
        await asyncio.to_thread(server.etcdctl, *filling)
    except subprocess.CalledProcessError as refused:
        return "space exceeded" in str(refused.stderr)
    return False


async def event_dropped(directory: Path) -> Result:
    async with apart(EtcdServer(directory)) as server:
        store, admin = FaultyStore(reaching(server.endpoint)), impatient(server.endpoint)
        async with staged(
            directory, store=store, access=access_to(server.endpoint), admin=admin, reconcile_s=RECONCILE_S
        ) as stage:
            await stage.account.start_afresh()
            store.drop_revisions = 1
            await stage.account.writer.write()
            began = time.monotonic()
            await eventually(lambda: stage.follower.repairs_total, 15.0, "the dropped event is repaired")
            stage.back_s = time.monotonic() - began
            return await stage.conclude()


@asynccontextmanager
async def asking_for_users(
    directory: Path, *flags: str, from_the_start: bool
) -> AsyncIterator[tuple[EtcdServer, Relay, Stage]]:
    """A stage behind a relay on which everybody has a login, which etcd asks for sooner or later."""
    async with apart(EtcdServer(directory, extra=flags)) as server, Relay.to(server.endpoint) as relay:
        await asyncio.to_thread(add_user, server, "/pdcore/")
        if from_the_start:
            await asyncio.to_thread(switch_on, server)
        known = Identity(user=USER, password=PASSWORD)
        admin = impatient(server.endpoint, identity=known)
        store = reaching(relay.endpoint, identity=known)
        access = access_to(relay.endpoint, user=USER, password=PASSWORD)
        async with staged(directory, store=store, access=access, admin=admin) as stage:
            yield server, relay, stage


async def auth_switched_on(directory: Path) -> Result:
    """Watches and leases go on; the next connection of each needs a login."""
    async with asking_for_users(directory, from_the_start=False) as (server, relay, stage):
        await asyncio.to_thread(switch_on, server)
        switched = time.monotonic()
        await stage.is_back(switched)
        await asyncio.sleep(TTL_S)
        relay.cut()
        await stage.is_back(time.monotonic())
        return await stage.conclude()


async def token_expired(directory: Path) -> Result:
    """Nobody but the registrar has shown a token for longer than it lasts, when every connection is cut."""
    flags = ("--auth-token-ttl", str(TOKEN_S))
    async with asking_for_users(directory, *flags, from_the_start=True) as (_, relay, stage):
        stage.account.writer.paused = True
        await asyncio.sleep(3 * TOKEN_S)
        relay.cut()
        stage.account.writer.paused = False
        await stage.is_back(time.monotonic())
        return await stage.conclude()
