"""What somebody asked for by name and is not here is said before anything is connected; what always works is not tried."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner

from pdcore.config import ENGINE, EngineConfig, load
from pdcore.engine import command as program
from pdcore.engine import trial
from pdcore.engine.placement import Sizes, place
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.integration

HERE = {name: importlib.util.find_spec(name) is not None for name in ("torch_npu", "mooncake")}


def config(**flags: str) -> EngineConfig:
    return load(
        EngineConfig, ENGINE, {"role": "prefill", "model": ".", **flags}, section="engine", environ={}
    )


@pytest.mark.skipif(HERE["torch_npu"], reason="torch_npu is installed")
def test_a_device_that_is_not_here_is_refused_though_no_store_answers(
    tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = {"role": "prefill", "model": str(write_tiny_llama(tmp_path)), "device": "npu"}
    assert program.serve({**flags, "store": "etcd://127.0.0.1:1", "port": "0", "bootstrap_port": "0"}) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        "pdcore.engine: --device / PDCORE_DEVICE: npu cannot be used: the package torch_npu"
    )


@pytest.mark.parametrize("flags", [{}, {"device": "cpu"}, {"device": "auto", "transfer_engine": "tcp"}])
def test_what_always_works_is_not_tried(flags: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    trial.check(config(**flags), place(Sizes(), 1, None))


@pytest.mark.parametrize(
    ("arguments", "package", "says"),
    [
        (["--library", "mooncake"], "mooncake", "pip install 'pdcore[mooncake]'"),
        (["--library", "mooncake", "--protocol", "ascend"], "mooncake", "pip install 'pdcore[ascend]'"),
        (["--library", "memfabric"], "memfabric_hybrid", "pip install 'pdcore[ascend]'"),
        (["--device", "npu"], "torch_npu", "the package torch_npu is not installed"),
    ],
)
def test_a_trial_says_what_a_rank_would(arguments: list[str], package: str, says: str) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    tried = CliRunner().invoke(trial.main, arguments)
    assert (tried.exit_code, tried.output.count("\n")) == (2, 1)
    assert says in tried.output
