"""The command line of cann-recipes-infer, word by word, with real processes. Loopback addresses are the machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import pytest

from tests.support.cluster import Cluster, Engine

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

P0, P1, D0 = "127.0.0.1", "127.0.0.2", "127.0.0.3"
START_S: Final = 180.0
ANSWER_S: Final = 60.0
REQUEST: Final = {"model": "tiny", "prompt": "as the recipe has it", "max_tokens": 8, "temperature": 0}
YAML: Final = """
model_config:
  model_name: "tiny"
  model_path: "{model}"
  with_ckpt: True
  exe_mode: "eager"
  enable_profiler: False
  custom_params:
    enable_multi_streams: False
parallel_config:
  world_size: {world}
  attn_tp_size: {world}
  dense_tp_size: {world}
scheduler_config:
  block_size: 32
  max_prefill_tokens: 256
  max_new_tokens: 512
  batch_size: 8
  mem_fraction_static: 0.9
"""


class Serving:
    """Starts ``pdcore serve`` processes in a directory with a recipe's two files."""

    def __init__(self, cluster: Cluster, prefill_machines: Sequence[str], stack: ExitStack) -> None:
        self.cluster = cluster
        self._prefill = prefill_machines
        self._stack = stack
        for role, world in (("prefill", len(prefill_machines)), ("decode", 1)):
            text = YAML.format(model=cluster.model, world=world)
            (cluster.directory / f"{role}.yaml").write_text(text)

    def start(self, role: str, index: int, machine: str, *flags: str) -> Engine:
        """The parent on ``machine``, with the words of the design document's section 7.4."""
        port = {"prefill": 8001, "decode": 8100}[role]
        master = self._prefill[0] if role == "prefill" else D0
        arguments = [
            *(sys.executable, "-m", "pdcore", "serve", "--role", role),
            f"--yaml_file_path={self.cluster.directory}/{role}.yaml",
            *(f"--master_node={master}", f"--node-index={index}", "--devices-per-node=1"),
            *(f"--bootstrap-host={machine}", "--ips", *self._prefill, D0, *flags),
            *("--store", self.cluster.store, "--cluster", self.cluster.cluster, "--kv-tokens", "4096"),
        ]
        log = self.cluster.directory / f"serve-{role}-{index}.log"
        return self._stack.enter_context(Engine(arguments, log, port, f"{role}-{master}-{port}", machine))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize("machines", [(P0,), (P0, P1)], ids=["one machine", "a prefill instance on two"])
def test_the_command_serves(cluster: Cluster, stack: ExitStack, machines: tuple[str, ...]) -> None:
    serving = Serving(cluster, machines, stack)
    parents = [serving.start("prefill", index, ip) for index, ip in enumerate(machines)]
    decode = serving.start("decode", 0, D0)
    router = cluster.router()
    try:
        for ready in (parents[0], decode, router):
            ready.wait_ready(START_S)
        answer = router.post("/v1/completions", REQUEST, ANSWER_S)
    except AssertionError as late:
        logs = "\n".join(one.output()[-2000:] for one in (*parents, decode))
        raise AssertionError(f"{late}\n{logs}") from None
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    record = cluster.keyspace()[f"instances/{parents[0].instance_id}"]
    assert (record["url"], record["tp_size"], record["block_size"]) == (
        f"http://{P0}:8001",
        len(machines),
        32,
    )
    ranks = {
        key: rank["rank_ip"] for key, rank in cluster.keyspace().items() if key.startswith("ranks/prefill")
    }
    assert sorted(ranks.values()) == sorted(machines)
