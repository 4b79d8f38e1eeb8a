"""A router's process between a slow side and a fast one: nothing piles up, nobody waits for others, and patience is long."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from tests.router.conformance.leaving import asking, connected
from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, Do, FakeEngine, Flood, Hang, Script, event
from tests.support.processes import ChildProcess, free_port

pytestmark = pytest.mark.cluster

LARGE: Final = event("x" * 60_000)
FLOOD: Script = (fake.stream_head(), Flood(b"%x\r\n%s\r\n" % (len(LARGE), LARGE), 3500), Hang())
"""210 MB, if somebody takes them."""
TOKENS, EVERY_S = 40, 0.05
STARTED_S, SOON_S = 40.0, 10.0


async def pause(seconds: float) -> None:
    """An engine that computes for so long."""
    await asyncio.wait((asyncio.ensure_future(asyncio.Event().wait()),), timeout=seconds)


def paced(count: int, every_s: float) -> Script:
    """A stream of ``count`` tokens, one in ``every_s``."""
    steps: list[fake.Step] = [fake.stream_head()]
    for number in range(count):
        steps += [Do(lambda: pause(every_s)), fake.chunk(event(str(number)))]
    return (*steps, fake.chunk(event("", "stop") + DONE), fake.END)


@dataclass(frozen=True)
class Alone:
    """A router's process over one engine that computes both phases."""

    url: str
    process: ChildProcess
    engine: FakeEngine
    client: httpx.AsyncClient

    def resident_mib(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / (1 << 20)

    async def gaps_s(self) -> list[float]:
        """The times between the events of one paced stream."""
        self.engine.scripts = [paced(TOKENS, EVERY_S)]
        times: list[float] = []
        async with self.client.stream(
            "POST", "/v1/completions", json={"prompt": "hi", "stream": True}
        ) as answer:
            async for part in answer.aiter_raw():
                times += [time.monotonic()] * part.count(b"data: {")
        assert len(times) == TOKENS + 1
        return [after - before for before, after in pairwise(times)]

    async def is_idle(self) -> bool:
        text = (await self.client.get("/metrics")).text
        return "\npdcore_router_in_flight 0" in text and self.engine.open_now == 0


@asynccontextmanager
async def alone(directory: Path, *flags: str) -> AsyncIterator[Alone]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        FakeEngine([fake.answer(200, COMPLETION)]) as engine,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, verify=False) as client,
    ):
        command = [
            sys.executable,
            "-m",
            "pdcore.router",
            "--unified",
            engine.url,
            "--port",
            str(port),
            *flags,
        ]
        with ChildProcess(command, directory / "router.log") as process:

            async def is_ready() -> bool:
                try:
                    return (await client.get("/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(is_ready, STARTED_S, "it is ready")
            one = Alone(url, process, engine, client)
            yield one
            engine.release.set()
            await eventually(one.is_idle, SOON_S, "nothing is left")


async def test_twenty_clients_who_read_nothing_cost_little_memory_and_slow_nobody(tmp_path: Path) -> None:
    async with alone(tmp_path, "--idle-timeout-s", "20") as one:
        usual_s = statistics.median(await one.gaps_s())
        before = one.resident_mib()
        one.engine.scripts = [FLOOD]
        async with AsyncExitStack() as stack:
            for _ in range(20):
                _, writer = await stack.enter_async_context(connected(one.url))
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(asking(stream=True))
            await eventually(lambda: one.engine.open_now == 20, SOON_S, "all are streamed to")
            await pause(3)
            sent = one.engine.flooded
            gaps = await one.gaps_s()
            assert one.engine.flooded - sent < 1 << 20, "engines are held back"
            grown = one.resident_mib() - before
        assert sent < 20 * (24 << 20), "what four socket buffers take, and no more"
        assert grown < 20, f"{grown:.1f} MiB more"
        assert statistics.median(gaps) < 2 * usual_s
        await eventually(one.is_idle, SOON_S, "their leaving ends their legs")


async def test_a_client_that_reads_slowly_gets_all_of_it(tmp_path: Path) -> None:
    script = fake.stream(*(event(f"{n} " + "x" * 1000) for n in range(300)), event("", "stop"), DONE)
    async with alone(tmp_path, "--idle-timeout-s", "1") as one:
        one.engine.scripts = [script]
        got = b""
        async with connected(one.url) as (reader, writer):
            writer.write(asking(stream=True))
            while part := await reader.read(4096):
                got += part
                await pause(0.03)
        assert got.count(b"data: {") == 301
        assert b'"error"' not in got
        assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_by_default_an_engine_may_take_longer_than_any_librarys_patience(tmp_path: Path) -> None:
    async with alone(tmp_path) as one:
        one.engine.scripts = [(Do(lambda: pause(6.5)), *fake.answer(200, COMPLETION))]
        assert (await one.client.post("/v1/completions", json={"prompt": "hi"})).json() == COMPLETION
        one.engine.scripts = [(Do(lambda: pause(6.5)), *paced(3, 6.5))]
        answer = await one.client.post("/v1/completions", json={"prompt": "hi", "stream": True})
        assert answer.content.endswith(DONE)
