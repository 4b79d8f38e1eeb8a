"""The commands that start a router without a store, as somebody types them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support import fake_engines as fake
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, FakeEngine, Script
from tests.support.processes import ChildProcess, free_port

pytestmark = pytest.mark.integration

GOOD: Script = fake.answer(200, COMPLETION)
WELL: Script = fake.answer(200, {})

COMMANDS: Final = {
    "Rust": "-m pdcore.router --prefill http://127.0.0.1:{p} 8998 --decode http://127.0.0.1:{d}",
    "cann": "-m pdcore serve --role router --prefill_addrs 127.0.0.1:{p} --decode-addrs 127.0.0.1:{d}",
}


@pytest.mark.parametrize("spelling", COMMANDS)
async def test_each_serves_without_a_store_and_drains(tmp_path: Path, spelling: str) -> None:
    port = free_port()
    async with (
        FakeEngine([GOOD], health=WELL) as p,
        FakeEngine([GOOD], health=WELL) as d,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5) as client,
    ):
        command = COMMANDS[spelling].format(p=p.port, d=d.port)
        with ChildProcess(
            [sys.executable, *command.split(), "--port", str(port)], tmp_path / "router.log"
        ) as router:

            async def is_ready() -> bool:
                try:
                    return (await client.get("/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await eventually(is_ready, 40, "a pair is there")
            answer = await client.post("/v1/completions", json={"prompt": "hi"})
            assert answer.status_code == 200
            assert d.seen[-1].json["bootstrap_port"] == (8998 if spelling == "Rust" else 18800)
            router.signal(signal.SIGTERM)
            await eventually(lambda: not router.running, 10, "it drains")
            assert router.returncode == 0, router.output()
