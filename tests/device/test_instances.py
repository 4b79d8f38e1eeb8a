"""Real instances on a real device: what a unified instance and a pair answer is what one on the CPU answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from pdcore.engine.device import Device
from tests.support.cluster import Cluster, Served
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.device

START_S = 300.0
LENGTHS = (9, 33, 70)


def texts(served: Served) -> list[str]:
    found = []
    for length in LENGTHS:
        asked = {
            "model": "tiny",
            "prompt": list(range(4, 4 + length)),
            "max_tokens": 24,
            "temperature": 0,
        }
        answer = httpx.post(f"{served.url}/v1/completions", json=asked, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        found.append(str(answer.json()["choices"][0]["text"]))
    return found


def test_a_unified_instance_and_a_pair_answer_what_the_cpu_answers(tmp_path: Path, device: Device) -> None:
    answers_agree(tmp_path, device.kind)


def answers_agree(directory: Path, kind: str) -> None:
    """Greedy float32 text of tiny Llama on the CPU, alone on a device, and from prefill to decode on that."""
    with Cluster(directory, write_tiny_llama(directory / "model")) as cluster:
        cluster.etcd.start()
        expected = texts(cluster.engine("unified", "--device", "cpu").wait_ready(START_S))
        assert texts(cluster.engine("unified", "--device", kind).wait_ready(START_S)) == expected
    with Cluster(directory, directory / "model") as cluster:
        cluster.etcd.start()
        for engine in [cluster.engine(role, "--device", kind) for role in ("prefill", "decode")]:
            engine.wait_ready(START_S)
        assert texts(cluster.router().wait_ready()) == expected
