"""What a hand-off costs a request: real processes on a tiny model, a pair and a unified instance side by side.

A hand-off is from the instant the prompt's last token is sampled on prefill to the instant decode's first step begins,
by the two ranks' own monotonic clocks, which are one on one machine.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx

from bench.figures import Figure, limit, quantile
from bench.progress import step
from tests.support.cluster import Cluster, Engine, Router
from tests.support.tiny_models import write_tiny_llama

WARM_UP: Final = 20
PAIRED: Final = 50
HANDOFF_TOKENS: Final = 1024
FIRST_TOKEN_TOKENS: Final = 512
SINCE_PREFILL: Final = "prefill done"
UNTIL_DECODE: Final = "first decode step"
TRACED: Final = ("--log-level", "debug", "--log-format", "json")


def measure(requests: int, *, paired: int = PAIRED) -> list[Figure]:
    """The figures of a pair, after ``requests`` hand-offs and ``paired`` first tokens of each kind."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        model = write_tiny_llama(directory / "tiny")
        (directory / "alone").mkdir()
        with Cluster(directory, model) as pairs:
            pairs.etcd.start()
            with Cluster(directory / "alone", model, store=pairs.store, cluster="alone") as alone:
                prefill, decode, router = pairs.pair(*TRACED)
                unified, unified_router = alone.engine("unified", *TRACED), alone.router()
                unified.wait_ready()
                unified_router.wait_ready()
                step(f"{requests} hand-offs of {HANDOFF_TOKENS} tokens")
                ask(router, requests + WARM_UP)
                step(f"{paired} first tokens of each, {FIRST_TOKEN_TOKENS} tokens")
                added = [b - a for a, b in first_tokens(unified_router, router, paired)]
                took = handoffs(prefill, decode)[WARM_UP : WARM_UP + requests]
    return [
        limit("hand-off, p50", quantile(took, 50) * 1000, "ms", 1.0),
        Figure(
            name="hand-off, p99",
            value=quantile(took, 99) * 1000,
            unit="ms",
            beside="p50",
            reference=quantile(took, 50) * 1000,
        ),
        limit("first token, pair over unified, p50", statistics.median(added) * 1000, "ms", 5.0),
    ]


def ask(router: Router, count: int) -> None:
    """One request after another, each with a prompt of its own and two tokens of answer."""
    for number in range(count):
        body = completion(number, HANDOFF_TOKENS)
        answer = router.post("/v1/completions", body)
        answer.raise_for_status()


def first_tokens(unified: Router, pair: Router, count: int) -> list[tuple[float, float]]:
    """Seconds to the first token from either, asked alternately and in turns first."""
    took = []
    with httpx.Client(timeout=60, trust_env=False) as client:
        for number in range(WARM_UP + count):
            order = (unified, pair) if number % 2 else (pair, unified)
            seconds = {router.url: first_token_s(client, router, number) for router in order}
            took.append((seconds[unified.url], seconds[pair.url]))
    return took[WARM_UP:]


def first_token_s(client: httpx.Client, router: Router, number: int) -> float:
    """From before the request to the first event that carries text."""
    body = {**completion(number, FIRST_TOKEN_TOKENS), "stream": True}
    began = time.perf_counter()
    with client.stream("POST", f"{router.url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                return time.perf_counter() - began
    raise AssertionError("no token came")


def completion(number: int, tokens: int) -> dict[str, object]:
    """A prompt of ``tokens`` tokens: one per character in the tiny model's byte-level vocabulary."""
    prompt = f"{number:06d}".ljust(tokens, "a")
    return {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}


def handoffs(prefill: Engine, decode: Engine) -> list[float]:
    """Seconds of each hand-off, in the order of their ends."""
    done, stepped = instants(prefill, SINCE_PREFILL), instants(decode, UNTIL_DECODE)
    return [at - done[room] for room, at in stepped.items() if room in done]


def instants(engine: Engine, event: str) -> dict[int, float]:
    """When ``event`` happened to each room, from the engine's debug lines."""
    lines = (json.loads(line) for line in engine.output().splitlines() if f'"{event}"' in line)
    return {line["room"]: line["at"] for line in lines}
