"""``pdcore group show``: the spec as it was written, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.group.spec import MODES
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import DocumentRecord
from tests.support.etcd_server import etcd_server

WRITTEN: Mapping[str, Any] = {
    "name": "g",
    "model": "Qwen/Qwen3-8B",
    "disaggregation": {"mode": "vllm-nixl"},
    "env": {"HF_TOKEN": "hf_very_secret", "NOTHING_TOKEN": "", "TOKENIZERS_PARALLELISM": "a b"},
    "backend_parameters": ["--max-model-len=8192", "--tensor-parallel-size=2"],
    "roles": [
        {"name": "prefill", "replicas": 2, "backend_parameters": ["--tensor-parallel-size", "2"]},
        {
            "name": "decode",
            "env": {},
            "backend_parameters": ["--api-key=sk-1", "--hf-token", "sk-2", "--max-tokens=3"],
        },
        {"name": "router", "backend_parameters": ["--max-attempts=2"]},
    ],
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["group", "show", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "group.yaml"
    made.write_text(yaml.safe_dump(dict(WRITTEN), sort_keys=False), encoding="utf-8")
    return made


@pytest.mark.unit
def test_without_a_flag_it_is_what_was_written(file: Path) -> None:
    done = run(str(file))
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout) == WRITTEN
    assert json.loads(run(str(file), "--json").stdout) == WRITTEN


@pytest.mark.unit
def test_effective_says_where_every_value_comes_from(file: Path) -> None:
    done = run(str(file), "--effective")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "group g, mode vllm-nixl: vLLM, KV through NIXL"
    assert [line for line in lines if not line.startswith(" ")][1:] == [
        "prefill x2",
        "decode x1",
        "router x1, members dynamic",
    ]
    for line in (
        "  mode       vllm serve",
        "  inherited  --served-model-name Qwen3-8B",
        "  derived    --host {{worker_ip}} --port {{port}}",
        "  user       --tensor-parallel-size 2",
        "  user       '--api-key=(hidden)' --hf-token '(hidden)' --max-tokens=3",
        "  inherited  env HF_TOKEN='(hidden)'",
        "  inherited  env NOTHING_TOKEN=''",
        "  inherited  env TOKENIZERS_PARALLELISM='a b'",
        "  derived    env UCX_NET_DEVICES={{net_device}}",
        "  derived    port kv_side_channel x1",
        "  user       --max-attempts=2",
    ):
        assert line in lines, done.stdout
    assert not any(secret in done.stdout for secret in ("hf_very_secret", "sk-1", "sk-2"))
    assert not any("problem" in line for line in lines)


@pytest.mark.unit
def test_effective_is_a_document_for_programs(file: Path) -> None:
    document = json.loads(run(str(file), "--effective", "--json").stdout)
    assert (document["group"], document["mode"]) == ("g", "vllm-nixl")
    prefill, decode, router = document["roles"]
    assert (prefill["replicas"], prefill["backend"]) == (2, "vllm")
    assert prefill["env"]["HF_TOKEN"] == {"value": "(hidden)", "source": "inherited"}
    assert "HF_TOKEN" not in decode["env"]
    assert {"name": "kv_side_channel", "base": None, "count": 1, "source": "derived"} in decode["ports"]
    assert router["membership"] == "dynamic"
    assert all(one["settled_later"] for one in prefill["problems"])


@pytest.mark.unit
@pytest.mark.parametrize("mode", MODES)
def test_the_example_of_every_mode_can_be_shown(mode: str, tmp_path: Path) -> None:
    made = tmp_path / f"{mode}.yaml"
    made.write_text(CliRunner().invoke(main, ["group", "init", mode]).stdout, encoding="utf-8")
    done = run(str(made), "--effective")
    assert done.exit_code == 0, done.output
    assert "-m pdcore.router" in done.stdout
    assert "problem:" not in done.stdout


@pytest.mark.unit
def test_what_stops_the_launch_is_named(file: Path) -> None:
    broken = dict(WRITTEN) | {"disaggregation": {"mode": "vllm-ascend-mooncake"}, "backend_parameters": []}
    broken |= {"roles": [{"name": "prefill"}, {"name": "decode"}, {"name": "router"}]}
    file.write_text(yaml.safe_dump(broken), encoding="utf-8")
    done = run(str(file), "--effective")
    assert "problem: args: {{roles.prefill.tp_size}} is not resolved: the role never declared" in done.stdout
    assert "port kv_port as many as the member has accelerators" in done.stdout


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: g\nname: h\n", "the key 'name' stands there twice"),
        ("name: g\nmodle: x\n", "there is no key 'modle'"),
    ],
)
def test_a_file_that_is_no_spec_is_exit_status_2(file: Path, text: str, said: str) -> None:
    file.write_text(text, encoding="utf-8")
    done = run(str(file), "--effective")
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.unit
def test_a_file_that_is_not_there_is_exit_status_2(tmp_path: Path) -> None:
    done = run(str(tmp_path / "no.yaml"))
    assert done.exit_code == 2
    assert "no.yaml" in done.stderr


@pytest.mark.integration
def test_a_saved_group_is_shown_by_its_name() -> None:
    with etcd_server() as etcd:
        key = Keyspace(cluster="default").view + keys.spec("g")
        etcd.etcdctl("put", key, codec.encode(DocumentRecord(WRITTEN)).decode())
        saved = run("g", "--store", etcd.url)
        other = run("h", "--store", etcd.url)
    assert yaml.safe_load(saved.stdout) == WRITTEN
    assert other.exit_code == 2
    assert "there is no file and no saved group 'h'; saved are g" in other.stderr
