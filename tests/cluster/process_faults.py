"""What is done to registrars and their parents: each function plays one fault on a stage of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.topology import keys
from pdcore.topology.keys import RankId
from tests.cluster.stage import BLIND_S, TTL_S, Result, Stage, apart, one_member
from tests.support.eventually import eventually
from tests.support.parents import Parent, has_ended, parent
from tests.support.registrations import FIRST, spec

SUPERSEDED_STATUS: Final = 3


async def parent_blocked(directory: Path, *, how: str, seconds: float) -> Result:
    """Another instance's parent does nothing else for so long: its registrar goes on without it."""
    async with (
        one_member(directory) as (server, stage),
        a_parent(spec(server.url, "busy", instance_id="d1", ttl_s=10)) as running,
    ):
        before = await standing(stage, "busy")
        running.block(how, seconds)
        await asyncio.to_thread(running.wait, "blocked")
        assert await standing(stage, "busy") == before, "nothing happened"
        return await stage.conclude()


async def stopped_and_replaced(directory: Path) -> Result:
    async with one_member(directory) as (server, stage):
        kept = partial(spec, server.url, instance_id="d1", ttl_s=TTL_S)
        async with a_parent(kept("old")) as old:
            processes = (old.process.pid, old.registered["registrar"])
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            async with a_parent(kept("new", take_over=True)):
                taken = await standing(stage, "new")
                for pid in processes:
                    os.kill(pid, signal.SIGCONT)
                assert await asyncio.to_thread(old.process.wait, 5) == SUPERSEDED_STATUS
                await eventually(lambda: has_ended(processes[1]), 5.0, "its registrar ends")
                result = await stage.conclude()
                assert await standing(stage, "new") == taken, "the old one wrote nothing"
                return result


@asynccontextmanager
async def a_parent(spec: RegistrarSpec) -> AsyncIterator[Parent]:
    """A registered instance of another process."""
    async with apart(parent(spec)) as running:
        await asyncio.to_thread(running.wait_registered)
        yield running


async def standing(stage: Stage, incarnation: str) -> tuple[int, int]:
    """The revisions at which this incarnation's record and rank were written; they do stand."""
    view = await stage.follower.wait_until(
        lambda view: "d1" in view.instances and view.instances["d1"].ready, BLIND_S
    )
    assert view.instances["d1"].incarnation == incarnation
    record, rank = (view.entry(key) for key in (keys.instance("d1"), keys.rank(RankId("d1", FIRST))))
    assert record is not None
    assert rank is not None
    return record.mod_revision, rank.mod_revision


async def registrar_stopped(directory: Path, *, seconds: float) -> Result:
    async with one_member(directory) as (_, stage):
        registrar, before = stage.registration.registrar_pid, stage.written_at()
        assert registrar is not None
        os.kill(registrar, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(registrar, signal.SIGCONT)
        continued = time.monotonic()
        if seconds > TTL_S:
            await stage.keys_are_back(continued, before)
        else:
            await stage.is_back(continued)
            assert stage.written_at() == before, "nothing happened"
        return await stage.conclude()
