"""What a rank process holds beside its weights and its pool."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import httpx

from bench.figures import Figure
from bench.models.sizes import weight_bytes
from pdcore.config import demo_model_directory
from pdcore.engine.model.config import ModelConfig
from tests.support.cluster import Cluster

KV_TOKENS: Final = 4096
WORDS: Final = 1900
"""Of each of two prompts, which together fill the pool."""
BESIDE_MB: Final = 400
ANSWER_S: Final = 120.0


def measure() -> list[Figure]:
    """Megabytes resident after two answers of a unified instance, which have touched nearly all of its pool."""
    directory = demo_model_directory()
    config = ModelConfig.from_directory(directory)
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch), directory) as cluster:
        cluster.etcd.start()
        engine = cluster.engine("unified", "--kv-tokens", str(KV_TOKENS)).wait_ready()
        for number in range(2):
            answer = httpx.post(
                f"{engine.url}/v1/completions",
                json={"prompt": f"{number} " + "word " * WORDS, "max_tokens": 8, "temperature": 0},
                timeout=ANSWER_S,
                trust_env=False,
            )
            answer.raise_for_status()
        held = max(rank.memory_info().rss for rank in engine.ranks()) / 1e6
    weights = weight_bytes(config) / 1e6
    pool = KV_TOKENS // 16 * config.kv_layout(16, "float32").block_bytes / 1e6
    return [
        Figure(
            name="memory of a rank",
            value=held,
            unit="MB",
            beside=f"weights {weights:,.0f} + pool {pool:,.0f} + {BESIDE_MB}",
            reference=weights + pool + BESIDE_MB,
            wanted=1.0,
        )
    ]
