"""The commands that start a router without a store, as somebody types them."""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from tests.router.conformance.engines import ENGINES, EVENTS, MooncakeDecode, Plane
from tests.router.conformance.rig import PAIRED
from tests.router.test_hostile_clients import Malice
from tests.support import fake_engines as fake
from tests.support.eventually import eventually, eventually_now
from tests.support.fake_engines import COMPLETION, FakeEngine, Script
from tests.support.processes import ChildProcess, free_port

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION)
WELL: Script = fake.answer(200, {})

COMMANDS: Final = {
    "Rust": "-m pdcore.router --prefill http://127.0.0.1:{p} 8998 --decode http://127.0.0.1:{d}",
    "cann": "-m pdcore serve --role router --prefill_addrs 127.0.0.1:{p} --decode-addrs 127.0.0.1:{d}",
}


@asynccontextmanager
async def started(
    directory: Path, command: Sequence[str]
) -> AsyncIterator[tuple[ChildProcess, httpx.AsyncClient]]:
    """``python command`` at a free port, which serves a pair."""
    port = free_port()
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10, verify=False
    ) as client:
        with ChildProcess(
            [sys.executable, *command, "--port", str(port)], directory / "router.log"
        ) as router:

            async def is_ready() -> bool:
                try:
                    return (await client.get("/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(is_ready, 40, "a pair is there")
            yield router, client


async def pickles_are_not_read(router: ChildProcess, mark: Path) -> int:
    """Push one at every port of the process; how many ports there are. All of them are of this machine only."""
    listening = [
        one.laddr for one in psutil.Process(router.pid).net_connections("tcp") if one.status == "LISTEN"
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    for address in listening:
        reader, writer = await asyncio.open_connection(address.ip, address.port)
        writer.write(pickle.dumps(Malice(mark)) + b"\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.transport.abort()
    return len(listening)


async def worker_changes_are_taken(client: httpx.AsyncClient, url: str) -> None:
    """One is listed, removed, and added again, as the Rust routers have it."""

    async def listed() -> dict[str, Any]:
        return {one["url"]: one for one in (await client.get("/workers")).json()["workers"]}

    async def serves() -> bool:
        return (await client.post("/v1/completions", json={"prompt": "hi"})).status_code == 200

    assert len(await listed()) == 2
    removed = await client.delete(f"/workers/{(await listed())[url]['id']}")
    assert removed.status_code == 202
    assert url not in await listed()
    assert not await serves()
    added = await client.post("/workers", json={"url": url, "worker_type": "decode"})
    assert added.status_code == 202
    await eventually(serves, 5, "the one that was added serves")


@pytest.mark.cluster
@pytest.mark.parametrize("protocol", PAIRED)
async def test_it_speaks_each_protocol_with_engines_it_was_told(tmp_path: Path, protocol: str) -> None:
    prefill, decode = ENGINES[protocol]
    plane = Plane()
    async with AsyncExitStack() as stack:
        p = await stack.enter_async_context(prefill(plane=plane, name="p0", health=WELL))
        d = await stack.enter_async_context(decode(plane=plane, name="d0", health=WELL))
        if isinstance(d, MooncakeDecode):
            d.engine_ids = ("p0",)
        command = (
            f"-m pdcore.router --protocol {protocol} --prefill {p.url},bootstrap={p.port} --decode {d.url}"
        )
        _, client = await stack.enter_async_context(started(tmp_path, command.split()))
        before = len(p.seen), len(d.seen)
        for body in ({"prompt": "hi"}, {"prompt": "hi", "stream": True}):
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
        assert answer.content == b"".join(EVENTS)
        assert (len(p.seen), len(d.seen)) == (before[0] + 2, before[1] + 2)
        for engine in (p, d):
            engine.release.set()


@pytest.mark.parametrize("spelling", ["Rust", pytest.param("cann", marks=pytest.mark.cluster)])
async def test_each_serves_without_a_store_and_drains(tmp_path: Path, spelling: str) -> None:
    mark = tmp_path / "mark"
    async with (
        FakeEngine([GOOD], health=WELL) as p,
        FakeEngine([GOOD], health=WELL) as d,
        started(tmp_path, COMMANDS[spelling].format(p=p.port, d=d.port).split()) as (router, client),
    ):
        answer = await client.post("/v1/completions", json={"prompt": "hi"})
        assert answer.status_code == 200
        assert d.seen[-1].json["bootstrap_port"] == (8998 if spelling == "Rust" else 18800)
        if spelling == "Rust":
            assert await pickles_are_not_read(router, mark) == 2
            await worker_changes_are_taken(client, d.url)
        router.signal(signal.SIGTERM)
        await eventually(lambda: not router.running, 10, "it drains")
        assert router.returncode == 0, router.output()
    assert not mark.exists()


def test_a_router_that_is_told_half_a_pair_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pdcore.router", "--prefill", "127.0.0.1:9", "--port", str(free_port())]
    with ChildProcess(command, tmp_path / "router.log") as router:
        eventually_now(lambda: "missing=decode" in router.output(), 20, "the other role is named")
        assert 'setting="--decode, or POST /workers"' in router.output()
        assert "following the store" not in router.output()
