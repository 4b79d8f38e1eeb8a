"""Supervisors with real processes and a keyspace in memory: small programs that listen, crash, or cannot start."""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from pdcore.beside import running_beside
from pdcore.clock import SystemClock
from pdcore.config import StoreAccess
from pdcore.config.member_network import PortRange
from pdcore.group.control import applying, slots
from pdcore.group.control.asking import Asking
from pdcore.group.control.changing import Restarting
from pdcore.group.control.controller import Controller
from pdcore.group.control.following import GroupFollower, slots_of
from pdcore.group.control.members import Member
from pdcore.group.control.slots import SlotWord
from pdcore.group.control.state import GroupState, state_of
from pdcore.group.control.status import facts_of
from pdcore.group.control.writing import GroupWriter
from pdcore.group.launch.child import Grace
from pdcore.group.launch.group_processes import Here, Processes
from pdcore.group.launch.keeper import Keeper
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.ports.holding import HeldPorts
from pdcore.group.spec import GroupSpec, spec_of
from pdcore.registry.memory import MemoryStore
from pdcore.topology.keys import Keyspace
from tests.support.eventually import eventually

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SPACE = Keyspace(cluster="test")
GROUP = "own"
WITHIN_S = 60.0
LISTENS = """
import os, socket, sys, time
open(os.path.join(sys.argv[1], f"{sys.argv[3]}.{os.getpid()}"), "w").close()
with socket.create_server(("127.0.0.1", int(sys.argv[2]))):
    time.sleep(600)
"""
FALLS = """
import sys
print("OSError: [Errno 98] Address already in use")
sys.exit(int(sys.argv[1]))
"""
P1, D1, R1 = Member(1, "prefill", 1), Member(1, "decode", 1), Member(0, "router", 1)


def program(script: str, *arguments: object) -> str:
    return shlex.join([sys.executable, "-S", "-c", script, *map(str, arguments)])


def spec(directory: Path, prefill: str | None = None, replicas: int = 1) -> GroupSpec:
    """A group whose members listen and write down that they were started."""
    listens = program(LISTENS, directory, "{{port}}", "{{instance_id}}")
    return spec_of(
        {
            "name": GROUP,
            "model": "nothing",
            "disaggregation": {"mode": "custom"},
            "backend": "custom",
            "roles": [
                {"name": "prefill", "replicas": replicas, "run_command": prefill or listens},
                {"name": "decode", "run_command": listens},
                {"name": "router", "run_command": listens},
            ],
        }
    )


class Stage:
    """One keyspace, and supervisors that come and go."""

    def __init__(self, directory: Path, store: MemoryStore) -> None:
        self.directory = directory
        self.store = store
        self.output = io.StringIO()

    @asynccontextmanager
    async def supervisor(self, name: str, ports: str) -> AsyncIterator[GroupFollower]:
        """A supervisor with its controller."""
        clock, log = SystemClock(), PrefixedLog(self.output, ())
        follower = GroupFollower(self.store, SPACE, GROUP, clock)
        here = Here(
            cluster="test",
            access=StoreAccess(url="etcd://127.0.0.1:1", timeout_s=1.0),
            port=0,
            torch_threads=1,
            drain_timeout_s=1.0,
            log_format="text",
            log_level="warning",
        )
        grace = Grace(5.0, asyncio.Event())
        async with AsyncExitStack() as opened:
            client = await opened.enter_async_context(httpx.AsyncClient(trust_env=False))
            await opened.enter_async_context(follower.following())
            held = opened.enter_context(HeldPorts(PortRange.parse(ports)))
            writer = GroupWriter(self.store, SPACE, GROUP)
            keeper = Keeper(name, self.store, writer, follower, Processes(here, held), log, grace, clock)
            await opened.enter_async_context(keeper.keeping())
            controller = Controller(self.store, SPACE, follower, Asking(client), log.say)
            await opened.enter_async_context(running_beside(controller.control()))
            yield follower

    async def words(self) -> dict[Member, SlotWord]:
        """What the supervisors say of their members."""
        held = (await self.store.list(slots.prefix(SPACE, GROUP))).entries
        found = slots_of(SPACE, GROUP, held, None)
        return {member: slot.word for member, slot in found.items() if slot.word is not None}

    async def wait(
        self, holds: Callable[[dict[Member, SlotWord]], object], what: str
    ) -> dict[Member, SlotWord]:
        async def found() -> dict[Member, SlotWord] | None:
            words = await self.words()
            return words if holds(words) else None

        read = await eventually(found, WITHIN_S, f"{what}\n{self.output.getvalue()[-2000:]}")
        assert read is not None
        return read

    async def wait_serving(self, *members: Member) -> dict[Member, SlotWord]:
        def serve(words: dict[Member, SlotWord]) -> bool:
            return set(words) == set(members) and all(word.url for word in words.values())

        return await self.wait(serve, f"{members} serve")

    def starts(self) -> list[str]:
        """Who was started, once per start."""
        return sorted(path.name.rpartition(".")[0] for path in self.directory.iterdir())


def state(follower: GroupFollower) -> GroupState:
    seen = follower.seen()
    assert seen is not None
    return state_of(facts_of(seen, "any"))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with MemoryStore() as store:
        yield Stage(tmp_path, store)


async def test_members_run_scale_come_back_and_end(stage: Stage, tmp_path: Path) -> None:
    await applying.apply(stage.store, SPACE, spec(tmp_path))
    async with stage.supervisor("a", "39300-39331") as follower:
        words = await stage.wait_serving(P1, D1, R1)
        await eventually(lambda: state(follower).name == "running", WITHIN_S, "running")
        await applying.scale(stage.store, SPACE, GROUP, {"prefill": 2})
        await stage.wait_serving(P1, Member(1, "prefill", 2), D1, R1)
        await applying.scale(stage.store, SPACE, GROUP, {"prefill": 1})
        await stage.wait_serving(P1, D1, R1)
        pid = words[D1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        again = await stage.wait(lambda words: words[D1].url and words[D1].pid != pid, "the member is back")
        assert again[D1].exits == 1
        asked = Restarting(kind="stop-start", by="me", proof="", deadline_s=1.0)
        await applying.restart(stage.store, SPACE, GROUP, asked)
        later = (Member(2, "prefill", 1), Member(2, "decode", 1), R1)
        await stage.wait_serving(*later)
        running = [word.pid for word in (await stage.words()).values() if word.pid is not None]
    assert await stage.words() == {}, "a supervisor that ends gives its slots back"
    assert not any(map(psutil.pid_exists, running))
    assert stage.starts().count("own-1-decode-1") == 2


async def test_two_supervisors_start_nobody_twice_and_one_continues_the_other(
    stage: Stage, tmp_path: Path
) -> None:
    await applying.apply(stage.store, SPACE, spec(tmp_path, replicas=3))
    everybody = [*(Member(1, "prefill", n) for n in (1, 2, 3)), D1, R1]
    async with AsyncExitStack() as first, stage.supervisor("b", "39332-39363"):
        await first.enter_async_context(stage.supervisor("a", "39364-39395"))
        await stage.wait_serving(*everybody)
        assert stage.starts() == sorted(one.name_in(GROUP) for one in everybody)
        await first.aclose()
        words = await stage.wait_serving(*everybody)
        assert {word.supervisor for word in words.values()} == {"b"}


async def test_a_member_that_cannot_start_is_an_error_with_its_cause(stage: Stage, tmp_path: Path) -> None:
    await applying.apply(stage.store, SPACE, spec(tmp_path, prefill=program(FALLS, 2)))
    async with stage.supervisor("a", "39396-39427") as follower:
        words = await stage.wait(lambda words: P1 in words and words[P1].failed, "failed")
        assert "a port is taken [address_in_use]: OSError" in words[P1].why
        await stage.wait(lambda words: words[D1].url and words[R1].url, "the others serve")
        await eventually(lambda: state(follower).name == "partial", WITHIN_S, "partial")
        assert "own-1-prefill-1: a port is taken" in state(follower).sentence


async def test_ports_that_do_not_fit_are_an_error_that_counts_them(stage: Stage, tmp_path: Path) -> None:
    await applying.apply(stage.store, SPACE, spec(tmp_path))
    async with stage.supervisor("a", "39428-39429"):
        words = await stage.wait(
            lambda words: sum(word.failed for word in words.values()) == 1, "one has no port"
        )
        (why,) = [word.why for word in words.values() if word.failed]
        assert "widen --service-port-range" in why


async def test_slots_that_were_lost_from_under_running_members_are_claimed_again(
    stage: Stage, tmp_path: Path
) -> None:
    await applying.apply(stage.store, SPACE, spec(tmp_path))
    async with stage.supervisor("a", "39430-39461") as follower:
        before = await stage.wait_serving(P1, D1, R1)
        assert follower.lease is not None
        await stage.store.revoke(follower.lease)
        after = await stage.wait_serving(P1, D1, R1)
    assert {one: word.pid for one, word in before.items()} == {one: word.pid for one, word in after.items()}
