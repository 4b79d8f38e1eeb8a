"""The same greedy text from a PD pair, from one unified instance, and from transformers, in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pdcore import config
from tests.support.cluster import Cluster, Served
from tests.support.golden import Golden
from tests.support.tiny_models import write_tiny_llama, write_tiny_qwen3

PROMPTS = 20
MOST = 32


def prompts() -> list[str]:
    dice = random.Random(11)
    letters = "abcdefghij klmnop qrstuvwxyz ,.\n0123456789ABCäß€"
    return ["".join(dice.choices(letters, k=dice.randint(1, 200))) for _ in range(PROMPTS)]


def complete(server: Served, prompt: str, most: int = MOST, **more: object) -> str:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": most, "temperature": 0, **more}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("write", [write_tiny_llama, write_tiny_qwen3], ids=["llama", "qwen3"])
def test_twenty_prompts_on_a_tiny_model(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    model = write(tmp_path / "model")
    golden = Golden(model)
    with Cluster(tmp_path, model) as cluster:
        cluster.etcd.start()
        unified = cluster.engine("unified")
        _, decode, router = cluster.pair("--max-prefill-tokens", "64")
        unified.wait_ready()
        for prompt in prompts():
            disaggregated = complete(router, prompt)
            assert disaggregated == complete(unified, prompt)
            golden.check_text(golden.text_ids(prompt), disaggregated, MOST)
        assert decode.gauge("pdcore_engine_handoffs_ok_total") == PROMPTS


@pytest.mark.integration
@pytest.mark.slow
def test_a_seed_gives_the_same_sample_through_a_pair_and_alone(tmp_path: Path, tiny_model: Path) -> None:
    with Cluster(tmp_path, tiny_model) as cluster:
        cluster.etcd.start()
        unified = cluster.engine("unified")
        router = cluster.pair()[2]
        unified.wait_ready()
        sampling = {"temperature": 0.9, "top_p": 0.95, "top_k": 40}
        texts = set()
        for seed in range(5):
            text = complete(router, "sample me", MOST, seed=seed, **sampling)
            assert text == complete(unified, "sample me", MOST, seed=seed, **sampling)
            texts.add(text)
        assert len(texts) == 5


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.model
def test_three_prompts_on_the_demo_model(tmp_path: Path) -> None:
    model = config.demo_model_directory()
    assert model.is_dir(), "`pdcore demo-model` has not been run"
    golden = Golden(model)
    with Cluster(tmp_path, model) as cluster:
        cluster.etcd.start()
        unified = cluster.engine("unified")
        router = cluster.pair()[2]
        unified.wait_ready()
        for question in ("What is the capital of France?", "Name three fruits.", "Why is the sky blue?"):
            messages = [{"role": "user", "content": question}]
            body = {"model": "tiny", "messages": messages, "max_tokens": 48, "temperature": 0}
            answers = [
                httpx.post(f"{s.url}/v1/chat/completions", json=body, timeout=120, trust_env=False).json()
                for s in (router, unified)
            ]
            texts = [str(answer["choices"][0]["message"]["content"]) for answer in answers]
            assert texts[0] == texts[1]
            golden.check_text(golden.prompt_ids(messages), texts[0], 48)
