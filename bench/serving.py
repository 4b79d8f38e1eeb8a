"""What a PD pair costs on this machine: hand-off time, and what the router adds to asking both legs directly.

Real processes on a tiny model. Figures that are compared come from one run, their requests interleaved.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import httpx

from tests.support.cluster import Cluster, Engine, Router
from tests.support.tiny_models import write_tiny_llama

REQUESTS = 200
WARM_UP = 20
PROMPT_CHARACTERS = 1024  # one token each in the tiny model's byte-level vocabulary


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        model = write_tiny_llama(directory / "tiny")
        with Cluster(directory, model) as cluster:
            cluster.etcd.start()
            prefill, decode, router = cluster.pair("--log-level", "debug", "--log-format", "json")
            asyncio.run(measure(cluster, prefill, decode, router))


async def measure(cluster: Cluster, prefill: Engine, decode: Engine, router: Router) -> None:
    bootstrap = cluster.bootstrap(prefill)
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:

        async def through_router(prompt: str) -> None:
            (await client.post(f"{router.url}/v1/completions", json=body(prompt))).raise_for_status()

        async def legs_directly(prompt: str) -> None:
            leg = {**body(prompt), **bootstrap, "bootstrap_room": random.getrandbits(62) + 1}
            answers = await asyncio.gather(
                *(client.post(f"{engine.url}/v1/completions", json=leg) for engine in (prefill, decode))
            )
            for answer in answers:
                answer.raise_for_status()

        routed, direct = [], []
        for number in range(WARM_UP + REQUESTS):
            routed.append(await timed(through_router, number))
            direct.append(await timed(legs_directly, number))
    print_handoffs(prefill, decode)
    added = statistics.median(routed[WARM_UP:]) - statistics.median(direct[WARM_UP:])
    print(f"router  through it   {quantiles(routed[WARM_UP:])}")
    print(f"router  legs direct  {quantiles(direct[WARM_UP:])}")
    ratio = statistics.median(routed[WARM_UP:]) / statistics.median(direct[WARM_UP:])
    print(f"router  adds {added * 1000:.2f} ms at the median, ratio {ratio:.2f}")


def body(prompt: str) -> dict[str, object]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}


async def timed(call: Callable[[str], Awaitable[None]], number: int) -> float:
    prompt = f"{number:06d}" + "a" * (PROMPT_CHARACTERS - 6)
    began = time.perf_counter()
    await call(prompt)
    return time.perf_counter() - began


def print_handoffs(prefill: Engine, decode: Engine) -> None:
    """From the end of the prompt's computation to the first decode step, by the two ranks' own log lines."""
    done, stepped = instants(prefill, "prefill done"), instants(decode, "first decode step")
    took = [stepped[room] - at for room, at in done.items() if room in stepped][WARM_UP:]
    print(f"handoff prefill done → first decode step, 1k tokens  {quantiles(took)}")


def instants(engine: Engine, event: str) -> dict[int, float]:
    lines = (json.loads(line) for line in engine.output().splitlines() if event in line)
    return {line["room"]: datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines}


def quantiles(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {cuts[49] * 1000:7.2f} ms  p99 {cuts[98] * 1000:7.2f} ms  (n={len(seconds)})"


if __name__ == "__main__":
    main()
