"""The router as a process: how it starts, what it says when it cannot, how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.store import Put
from pdcore.router.command import main
from pdcore.topology import codec
from pdcore.topology.records import Role
from tests.router.fleet import SPACE, entries, record
from tests.support import fake_engines as fake
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, MARK, FakeEngine, Hang, Script, event
from tests.support.processes import ChildProcess, free_port

pytestmark = pytest.mark.integration

STREAM: Script = (
    *(fake.stream_head(), fake.chunk(event("a")), Hang()),
    *(fake.chunk(event("b", "stop") + DONE), fake.END),
)


class Process(ChildProcess):
    """``python -m pdcore.router`` on a free port."""

    def __init__(self, directory: Path, store: str, *flags: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = [
            *(sys.executable, "-m", "pdcore.router", "--store", store, "--cluster", SPACE.cluster),
            *("--port", str(port), "--router-id", "r", "--lease-ttl-s", "5", *flags),
        ]
        super().__init__(arguments, directory / "router.log")

    def asking(self) -> httpx.AsyncClient:
        """A client for it alone."""
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=10, verify=False)

    async def get(self, path: str) -> httpx.Response | None:
        async with self.asking() as client:
            return await _got(client, path)

    async def wait_status(self, path: str, status: int) -> httpx.Response:
        async with self.asking() as client:

            async def answered() -> httpx.Response | None:
                answer = await _got(client, path)
                return answer if answer is not None and answer.status_code == status else None

            found = await eventually(answered, 40, f"{path} says {status}")
        assert found is not None
        return found


async def _got(client: httpx.AsyncClient, path: str) -> httpx.Response | None:
    try:
        return await client.get(path)
    except httpx.TransportError:
        return None


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


async def register(url: str, **engines: FakeEngine) -> None:
    """Put p and d as they would put themselves."""
    async with open_store(StoreAccess(url=url, timeout_s=3)) as store:
        for name, engine in engines.items():
            role: Role = "prefill" if name == "p" else "decode"
            found = entries(name, record(role, engine.url))
            await store.commit(
                (), tuple(Put(SPACE.view + key, codec.encode(one)) for key, one in found.items())
            )


@asynccontextmanager
async def serving(
    directory: Path, etcd: EtcdServer, decode: Script, *flags: str
) -> AsyncIterator[tuple[Process, FakeEngine, FakeEngine]]:
    """A router that is ready, over a running etcd and one pair."""
    async with FakeEngine([fake.accepted()]) as p, FakeEngine([decode]) as d:
        await register(etcd.url, p=p, d=d)
        with Process(directory, etcd.url, *flags) as process:
            await process.wait_status("/ready", 200)
            yield process, p, d


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--host", "0.0.0.0"), "name one address"),
        (("--host", "256.1.1.1"), "is no address"),
        (("--port", "x"), "--port / PDCORE_PORT"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_and_exit_2(flags: tuple[str, ...], says: str) -> None:
    ended = CliRunner().invoke(main, flags)
    assert ended.exit_code == 2
    (line,) = ended.stderr.splitlines()
    assert says in line


def test_a_taken_port_is_one_line_and_exit_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(main, ("--port", str(port)))
    assert ended.exit_code == 2
    assert (
        ended.stderr
        == f"pdcore.router: --port / PDCORE_PORT: port {port} on 127.0.0.1 is taken by another process\n"
    )


def test_a_store_that_cannot_be_one_is_exit_2() -> None:
    ended = CliRunner().invoke(main, ("--store", "http://x", "--port", "0"))
    assert ended.exit_code == 2
    assert ended.stderr.startswith("pdcore.router: --store / PDCORE_STORE")


async def test_it_starts_before_the_store_says_so_and_heals_and_a_second_signal_ends_it_at_once(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    etcd.stop()
    etcd.wipe()
    async with FakeEngine([fake.accepted()]) as p, FakeEngine([fake.answer(200, COMPLETION, MARK)]) as d:
        with Process(tmp_path, etcd.url) as process:
            refused = await process.wait_status("/ready", 503)
            assert "store" in refused.text
            async with process.asking() as client:
                answer = await client.post("/v1/completions", json={"prompt": "hi"})
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")
                assert "store" in answer.json()["error"]["message"]
                etcd.start()
                await register(etcd.url, p=p, d=d)
                await process.wait_status("/ready", 200)

                async def is_registered() -> bool:
                    shown = (await client.get("/pdcore/topology")).json()
                    return bool(shown["routers"] == {"r": process.url})

                await eventually(is_registered, 5, "the router in its own view")
                named = {"prompt": "hi", "bootstrap_room": 5}
                assert (await client.post("/v1/completions", json=named)).status_code == 200
                metrics = (await client.get("/metrics")).text
                assert "pdcore_router_unclaimed_rooms_total 0.0" in metrics, "claimed under its own lease"

                async def is_idle() -> bool:  # a request is over a moment after its last byte
                    return "pdcore_router_in_flight 0.0" in (await client.get("/metrics")).text

                await eventually(is_idle, 2, "no request in flight")
                d.scripts = [STREAM]
                stuck = asyncio.ensure_future(
                    client.post("/v1/completions", json={"prompt": "hi", "stream": True})
                )
                await eventually(lambda: d.open_now == 1, 5)
                process.signal(signal.SIGTERM)
                await process.wait_status("/ready", 503)
                process.signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, 5) == 1
                with pytest.raises(httpx.TransportError):
                    await stuck


async def test_sigterm_lets_streams_finish_and_leaves_the_keyspace(tmp_path: Path, etcd: EtcdServer) -> None:
    async with serving(tmp_path, etcd, STREAM) as (process, _, d):
        async with process.asking() as client:
            body = {"prompt": "hi", "stream": True}
            streams = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for _ in range(4)]
            await eventually(lambda: d.open_now == 4, 5)
            process.signal(signal.SIGTERM)
            await process.wait_status("/ready", 503)
            assert (await client.post("/v1/completions", json=body)).status_code == 503
            d.release.set()
            assert {(await one).content for one in streams} == {event("a") + event("b", "stop") + DONE}
        assert await asyncio.to_thread(process.wait, 5) == 0, process.output()
        async with open_store(StoreAccess(url=etcd.url, timeout_s=3)) as store:
            assert not (await store.list(f"{SPACE.view}routers/")).entries


@pytest.mark.cluster
async def test_the_drain_has_an_end(tmp_path: Path, etcd: EtcdServer) -> None:
    body = {"prompt": "hi", "stream": True}
    async with serving(tmp_path, etcd, STREAM, "--drain-timeout-s", "0.3") as (process, _, d):
        async with process.asking() as client:
            cut = asyncio.ensure_future(client.post("/v1/completions", json=body))
            await eventually(lambda: d.open_now == 1, 5)
            process.signal(signal.SIGTERM)
            content = (await cut).content
        error = json.loads(content.removeprefix(event("a")).removeprefix(b"data: "))["error"]
        assert (error["code"], error["message"]) == ("backend_unavailable", "the router is stopping")
        await eventually(lambda: d.open_now == 0, 1, "the leg is aborted")
        assert await asyncio.to_thread(process.wait, 5) == 0, process.output()
