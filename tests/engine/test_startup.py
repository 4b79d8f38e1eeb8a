"""What a leader decides before it starts: names, ports, the model's text side; each refusal in one sentence."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcore.config import ENGINE, EngineConfig, load
from pdcore.engine.startup import starting
from pdcore.errors import ConfigError
from pdcore.http_server import listen, port_of
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port: int = other.getsockname()[1]
        yield port


def config(model: Path, role: str = "unified", **flags: str) -> EngineConfig:
    given = {"role": role, "model": str(model), "port": "0", "bootstrap_port": "0", **flags}
    return load(EngineConfig, ENGINE, given, section="engine", environ={})


def refusal(settings: EngineConfig) -> str:
    with pytest.raises(ConfigError) as caught, starting(settings):
        pytest.fail("it started")
    return str(caught.value)


def test_names_follow_from_role_host_port_and_directory(model: Path) -> None:
    with starting(config(model)) as startup:
        identity, port = startup.identity, port_of(startup.listener)
        assert identity.instance_id == f"unified-127.0.0.1-{port}"
        assert identity.url == f"http://127.0.0.1:{port}"
        assert identity.models == ("tiny",)
        assert (identity.bootstrap_port, startup.bootstrap) == (None, None)
        assert startup.rank_ip == "127.0.0.1"
    with starting(config(model, model_name="m", instance_id="mine")) as other:
        assert (other.identity.models, other.identity.instance_id) == (("m",), "mine")
        assert other.identity.incarnation != identity.incarnation


def test_an_instance_on_several_machines_needs_an_id_given_to_all_of_them(model: Path) -> None:
    assert "need one --instance-id / PDCORE_INSTANCE_ID" in refusal(config(model, nnodes="2"))
    assert "1 ranks (dp 1 x cp 1 x tp 1) do not divide by 2 machines" in refusal(
        config(model, nnodes="2", instance_id="mine")
    )
    assert "3 is none of 2 machines" in refusal(config(model, nnodes="2", node_rank="3", instance_id="mine"))


def test_sizes_that_the_model_or_the_role_does_not_have_are_named(model: Path) -> None:
    assert "--tp / PDCORE_TP: num_attention_heads" in refusal(config(model, tp="3"))
    assert "--cp / PDCORE_CP: 2 in a decode instance" in refusal(config(model, "decode", cp="2"))


def test_a_prefill_leader_holds_its_bootstrap_port_from_the_start(model: Path) -> None:
    with starting(config(model, "prefill")) as startup:
        port = startup.identity.bootstrap_port
        assert startup.bootstrap is not None
        assert port == port_of(startup.bootstrap)
        with pytest.raises(ConfigError):
            listen("127.0.0.1", port, "bootstrap_port")
    listen("127.0.0.1", port, "bootstrap_port").close()


def test_a_taken_port_names_flag_variable_and_port(model: Path, taken: int) -> None:
    http = refusal(config(model, port=str(taken)))
    assert http == f"--port / PDCORE_PORT: port {taken} on 127.0.0.1 is taken by another process"
    bootstrap = refusal(config(model, "prefill", bootstrap_port=str(taken)))
    assert bootstrap.startswith(f"--bootstrap-port / PDCORE_BOOTSTRAP_PORT: port {taken}")


def test_what_cannot_be_advertised_is_not_listened_on(model: Path) -> None:
    for host in ("0.0.0.0", "::"):
        assert refusal(config(model, host=host)).startswith("--host / PDCORE_HOST")
    assert "is no address" in refusal(config(model, host="no.such.host.invalid"))
    assert "'192.0.2.1' is no address of this machine" in refusal(config(model, host="192.0.2.1"))


def test_a_model_that_cannot_be_served_is_refused(model: Path, tmp_path: Path) -> None:
    assert refusal(config(tmp_path / "missing")).startswith("--model / PDCORE_MODEL")
    assert "config.json" in refusal(config(tmp_path))
    assert "PDCORE_MAX_MODEL_LEN" in refusal(config(model, max_model_len="999999"))


def test_an_install_without_the_engine_extra_says_what_to_install() -> None:
    code = (
        "import runpy, sys; sys.modules['zmq'] = None; runpy.run_module('pdcore.engine', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr == (
        "pdcore.engine: the package zmq is not installed; engines need the extra: pip install 'pdcore[engine]'\n"
    )
