"""What sending chunk by chunk does for a long prompt: two prefill instances, with and without it, and one decode.

The same requests go to both in turns, so that whatever else the machine does meets both alike. The tiny model has
little KV for what it computes; what is left of the hand-off when the last chunk is computed is told as well.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from bench.engine_serving import TRACED, completion, handoffs
from bench.figures import Figure
from bench.progress import step
from tests.support.cluster import Cluster, Engine, Router
from tests.support.tiny_models import write_tiny_llama

TRANSPORTS: Final = ("shm", "tcp")
TOKENS: Final = 4096
CHUNK: Final = 512
CONTEXT: Final = 8192
WARM_UP: Final = 2
PAIRS: Final = 15


@dataclass(frozen=True, slots=True)
class Site:
    """Two prefill instances that differ in the setting, with their decode and router."""

    cluster: Cluster
    by_chunk: Engine
    at_the_end: Engine
    decode: Engine
    router: Router

    def first_token_s(self, prefill: Engine, number: int, tokens: int) -> float:
        """From before the request, which goes to ``prefill``, to its first token."""
        body = {**completion(number, tokens), "stream": True, **self.cluster.bootstrap(prefill)}
        began = time.perf_counter()
        with httpx.stream(
            "POST", f"{self.router.url}/v1/completions", json=body, timeout=60, trust_env=False
        ) as answer:
            answer.raise_for_status()
            next(line for line in answer.iter_lines() if line.startswith("data: {"))
            took = time.perf_counter() - began
        return took


def measure(pairs: int = PAIRS, *, tokens: int = TOKENS, chunk: int = CHUNK) -> list[Figure]:
    """Each transport's first token and hand-off of a long prompt, sent chunk by chunk beside sent at the end."""
    figures = []
    for transport in TRANSPORTS:
        step(f"{2 * pairs} prompts of {tokens} tokens in chunks of {chunk}, by {transport}")
        with _site(transport, chunk) as site:
            figures += _figures(site, transport, pairs, tokens)
    return figures


def _figures(site: Site, transport: str, pairs: int, tokens: int) -> list[Figure]:
    engines = (site.by_chunk, site.at_the_end)
    took: dict[str, list[float]] = {engine.instance_id: [] for engine in engines}
    for number in range(WARM_UP + pairs):
        for engine in engines if number % 2 else reversed(engines):
            took[engine.instance_id].append(site.first_token_s(engine, number, tokens))
    firsts = [statistics.median(took[engine.instance_id][WARM_UP:]) * 1000 for engine in engines]
    left = [statistics.median(handoffs(engine, site.decode)[WARM_UP:]) * 1000 for engine in engines]
    return [
        Figure(name=name, value=by_chunk, unit="ms", beside="at the end", reference=at_the_end)
        for name, (by_chunk, at_the_end) in {
            f"first token of {tokens:,} tokens by chunk, {transport}, p50": firsts,
            f"  hand-off that is left of it, {transport}, p50": left,
        }.items()
    ]


@contextmanager
def _site(transport: str, chunk: int) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with Cluster(directory, _model(directory / "tiny")) as cluster:
            cluster.etcd.start()
            flags = (*TRACED, "--transfer-engine", transport, "--kv-tokens", "32768")
            chunked = (*flags, "--max-prefill-tokens", str(chunk))
            site = Site(
                cluster,
                cluster.engine("prefill", *chunked, "--per-chunk-sending", "on"),
                cluster.engine("prefill", *chunked, "--per-chunk-sending", "off"),
                cluster.engine("decode", *flags),
                cluster.router(),
            )
            for process in (site.by_chunk, site.at_the_end, site.decode, site.router):
                process.wait_ready()
            yield site


def _model(directory: Path) -> Path:
    """The tiny model with room for the prompt."""
    path = write_tiny_llama(directory) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}), encoding="utf-8")
    return directory
