"""The same greedy text from a PD pair, from one unified instance, and from transformers, in float32."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from pdcore import config
from tests.cluster.conftest import Fleet
from tests.support.cluster import Cluster, Engine, Served
from tests.support.golden import Golden
from tests.support.tiny_models import write_tiny_qwen3

PROMPTS = 20
MOST = 32
ANSWER = 48
QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "Why is the sky blue?",
    "Write one line of a poem about rain.",
    "How many legs has a spider, and how many an ant?",
    "Translate good morning into German.",
    "What does a compiler do? Answer for a child.",
    "List the months with 30 days.",
    "Continue: one, two, four, eight,",
    "ß€ 漢字? 🙂",
)


def prompts() -> list[str]:
    dice = random.Random(11)
    letters = "abcdefghij klmnop qrstuvwxyz ,.\n0123456789ABCäß€"
    return ["".join(dice.choices(letters, k=dice.randint(1, 200))) for _ in range(PROMPTS)]


def complete(server: Served, prompt: str, most: int = MOST, **more: object) -> str:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": most, "temperature": 0, **more}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def chat(server: Served, messages: list[dict[str, str]]) -> str:
    body = {"model": "tiny", "messages": messages, "max_tokens": ANSWER, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def complete_all(server: Served) -> list[str]:
    """Every prompt at once, so that batches of any shape are compared."""
    with ThreadPoolExecutor(PROMPTS) as pool:
        return list(pool.map(partial(complete, server), prompts()))


def check_exactness(model: Path, router: Served, unified: Served, decode: Engine) -> None:
    before = decode.gauge("pdcore_engine_handoffs_ok_total")
    disaggregated = complete_all(router)
    assert decode.gauge("pdcore_engine_handoffs_ok_total") == before + PROMPTS
    assert disaggregated == complete_all(unified)
    golden = Golden(model)
    for prompt, text in zip(prompts(), disaggregated, strict=True):
        golden.check_text(golden.text_ids(prompt), text, MOST)


@pytest.fixture(scope="module")
def unified(whole_fleet: Fleet) -> Engine:
    """One instance that does both phases, beside the fleet's pairs."""
    engine = whole_fleet.cluster.engine("unified", "--max-prefill-tokens", "64")
    return engine.wait_ready()


@pytest.mark.integration
@pytest.mark.slow
def test_twenty_prompts_on_a_tiny_llama(fleet: Fleet, unified: Engine, tiny_model: Path) -> None:
    check_exactness(tiny_model, fleet.router, unified, fleet.decode)


@pytest.mark.integration
@pytest.mark.slow
def test_two_ranks_hand_over_to_one_what_one_hands_over(fleet: Fleet) -> None:
    to_one, to_two = (fleet.cluster.bootstrap(engine) for engine in (fleet.prefill, fleet.other))
    before = fleet.other.gauge("pdcore_engine_handoffs_ok_total")
    for prompt in prompts()[:5]:
        assert complete(fleet.router, prompt, MOST, **to_two) == complete(
            fleet.router, prompt, MOST, **to_one
        )
    assert fleet.other.gauge("pdcore_engine_handoffs_ok_total") == before + 5
    assert fleet.other.gauge("pdcore_engine_steps_total", rank="0.0.1") > 0


@pytest.mark.integration
@pytest.mark.slow
def test_a_seed_gives_the_same_sample_through_a_pair_and_alone(fleet: Fleet, unified: Engine) -> None:
    sampling = {"temperature": 0.9, "top_p": 0.95, "top_k": 40}
    texts = set()
    for seed in range(5):
        text = complete(fleet.router, "sample me", MOST, seed=seed, **sampling)
        assert text == complete(unified, "sample me", MOST, seed=seed, **sampling)
        texts.add(text)
    assert len(texts) == 5


@pytest.mark.integration
@pytest.mark.slow
def test_samples_and_first_token_logprobs_through_a_pair_are_those_of_one_alone(
    fleet: Fleet, unified: Engine
) -> None:
    body = {"model": "tiny", "prompt": ["sample me", "x"], "n": 3, "max_tokens": 8, "seed": 3, "logprobs": 2}
    choices = [
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False).json()["choices"]
        for server in (fleet.router, unified)
    ]
    texts = [[choice["text"] for choice in some] for some in choices]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 6
    for one, other in zip(*choices, strict=True):
        assert one["logprobs"]["tokens"] == other["logprobs"]["tokens"]
        expected = pytest.approx(other["logprobs"]["token_logprobs"], abs=1e-4)
        assert one["logprobs"]["token_logprobs"] == expected


@pytest.mark.cluster
def test_twenty_prompts_on_a_tiny_qwen3(tmp_path: Path) -> None:
    model = write_tiny_qwen3(tmp_path / "model")
    with Cluster(tmp_path, model) as cluster:
        cluster.etcd.start()
        unified = cluster.engine("unified")
        _, decode, router = cluster.pair("--max-prefill-tokens", "64")
        check_exactness(model, router, unified.wait_ready(), decode)


@pytest.mark.cluster
@pytest.mark.model
def test_ten_prompts_on_the_demo_model(tmp_path: Path) -> None:
    model = config.demo_model_directory()
    assert model.is_dir(), "`pdcore demo-model` has not been run"
    golden = Golden(model)
    with Cluster(tmp_path, model) as cluster:
        cluster.etcd.start()
        unified = cluster.engine("unified")
        router = cluster.pair()[2]
        unified.wait_ready()
        prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
        expected = [golden.prompt_ids(messages) for messages in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            texts = [list(pool.map(partial(chat, server), prompts)) for server in (router, unified)]
        for ids, *both in zip(expected, *texts, strict=True):
            for text in set(both):
                golden.check_text(ids, text, ANSWER)
