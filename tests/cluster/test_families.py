"""Every family through real instances: alone, and from prefill to decode with one rank and with two on either side.

Prompts come twice, so that the second time prefill finds what it computed the first. KV is sent chunk by chunk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Final

import httpx
import pytest

from tests.support.cluster import Cluster, Engine, Served
from tests.support.eventually import eventually_now
from tests.support.family_models import FAMILIES, write_family
from tests.support.golden import Golden

pytestmark = pytest.mark.cluster

START_S: Final = 300.0
ANSWER_S: Final = 120.0
MOST: Final = 12
LENGTHS: Final = (1, 9, 33, 70)
BLOCK_SIZE: Final = 8
PATIENT: Final = ("--lease-ttl-s", "60")
SMALL: Final = (
    *("--block-size", str(BLOCK_SIZE), "--kv-tokens", "1024"),
    *("--max-prefill-tokens", "32", "--per-chunk-sending", "on"),
)
REUSED: Final = sum((length - 1) // BLOCK_SIZE * BLOCK_SIZE for length in LENGTHS)


class Family:
    """One model's instances by role and tensor parallel size, started when they are needed, and what is expected."""

    def __init__(self, cluster: Cluster, golden: Golden) -> None:
        self._cluster = cluster
        self._golden = golden
        self._running: dict[tuple[str, int], Engine] = {}
        self._rooms = count(1)
        dice = random.Random(11)
        self.prompts = [[dice.randrange(4, 512) for _ in range(length)] for length in LENGTHS]

    def instance(self, role: str, tp: int) -> Engine:
        key = (role, tp)
        if key not in self._running:
            self._running[key] = self._cluster.engine(role, *PATIENT, *SMALL, "--tp", str(tp))
        return self._running[key]

    def alone(self, unified: Engine, prompt: list[int]) -> dict[str, Any]:
        return post(unified, body(prompt))

    def pair(self, prefill: Engine, decode: Engine, prompt: list[int]) -> dict[str, Any]:
        legs = body(prompt) | {
            "bootstrap_room": next(self._rooms),
            **self._cluster.bootstrap(prefill),
        }
        with ThreadPoolExecutor(1) as pool:
            accepted = pool.submit(post, prefill, legs)
            answer = post(decode, legs)
            accepted.result()
        return answer

    def check(self, answers: list[dict[str, Any]]) -> None:
        """The greedy text of transformers, up to a tie of the two best logits."""
        for prompt, answer in zip(self.prompts, answers, strict=True):
            self._golden.check_text(prompt, answer["choices"][0]["text"], MOST)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    name = str(request.param)
    root = tmp_path_factory.mktemp(name)
    model = write_family(root / "model", name, shard_size="150KB")
    with Cluster(root, model) as cluster:
        cluster.etcd.start()
        yield Family(cluster, Golden(model))


def body(prompt: list[int]) -> dict[str, object]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": MOST, "temperature": 0}


def post(server: Served, asked: dict[str, object]) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=ANSWER_S, trust_env=False)
    assert answer.status_code == 200, f"{server.url}: {answer.text}"
    document: dict[str, Any] = answer.json()
    return document


def cached(answers: list[dict[str, Any]]) -> int:
    return sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)


@pytest.mark.parametrize("tp", [1, 2])
def test_one_instance_alone(family: Family, tp: int) -> None:
    unified = family.instance("unified", tp).wait_ready(START_S)
    firsts, seconds = ([family.alone(unified, prompt) for prompt in family.prompts] for _ in range(2))
    family.check(firsts)
    family.check(seconds)
    assert (cached(firsts), cached(seconds)) == (0, REUSED)


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_pair(family: Family, prefill_tp: int, decode_tp: int) -> None:
    pair = family.instance("prefill", prefill_tp), family.instance("decode", decode_tp)
    prefill, decode = (engine.wait_ready(START_S) for engine in pair)
    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        firsts, seconds = (
            list(pool.map(lambda prompt: family.pair(prefill, decode, prompt), family.prompts))
            for _ in range(2)
        )
    family.check(firsts)
    family.check(seconds)
    assert cached(seconds) == REUSED
    assert prefill.gauge("pdcore_engine_prefix_hit_tokens_total") >= REUSED
    assert decode.gauge("pdcore_engine_prefix_hit_tokens_total") == 0
    eventually_now(lambda: not (prefill.leftovers() or decode.leftovers()), 20, "a pair at rest")
