"""The address an instance listens on and advertises: loopback, what was named, or the only one there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pdcore.config import EngineConfig
from pdcore.engine.command import main
from pdcore.engine.settings import read_settings
from pdcore.errors import ConfigError
from pdcore.interfaces import Interface

pytestmark = pytest.mark.unit

ETH0 = Interface(name="eth0", up=True, addresses=("10.0.0.5",))
ETH1 = Interface(name="eth1", up=True, addresses=("10.1.0.5",))
SEVERAL = {"nnodes": "2", "instance_id": "i"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(*machine: Interface, **flags: str) -> EngineConfig:
    given = {"role": "prefill", "model": "m", **flags}
    return read_settings(given, interfaces=lambda: machine)


def test_one_machine_stays_on_loopback() -> None:
    assert read(ETH0).host == "127.0.0.1"


def test_several_machines_take_the_only_routable_address() -> None:
    assert read(ETH0, **SEVERAL).host == "10.0.0.5"


def test_several_machines_with_a_choice_are_asked() -> None:
    with pytest.raises(
        ConfigError, match=r"2 routable addresses: eth0 10\.0\.0\.5, eth1 10\.1\.0\.5; name one with"
    ):
        read(ETH0, ETH1, **SEVERAL)


@pytest.mark.parametrize(
    ("named", "host"),
    [
        ({"host": "127.0.0.1"}, "127.0.0.1"),
        ({"advertise_ip": "10.0.0.5"}, "10.0.0.5"),
        ({"kv_ifname": "eth1"}, "10.1.0.5"),
        ({"advertise_ip": "10.0.0.5", "kv_ifname": "eth1"}, "10.0.0.5"),
        ({"advertise_ip": "10.0.0.5", "host": "10.0.0.5"}, "10.0.0.5"),
    ],
)
@pytest.mark.parametrize("several", [{}, SEVERAL])
def test_what_was_named_is_taken(named: dict[str, str], host: str, several: dict[str, str]) -> None:
    assert read(ETH0, ETH1, **named, **several).host == host


def test_the_interface_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCORE_KV_IFNAME", "eth1")
    assert read(ETH0, ETH1).host == "10.1.0.5"


@pytest.mark.parametrize("named", [{"advertise_ip": "10.0.0.5"}, {"kv_ifname": "eth0"}])
def test_two_addresses_that_were_named_must_be_one(named: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--host / PDCORE_HOST: 10\.9\.9\.9 is not 10\.0\.0\.5"):
        read(ETH0, host="10.9.9.9", **named)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "parallel_config: {world_size: 3, attn_tp_size: 2}",
            "world_size: 3 does not divide by attn_tp_size 2",
        ),
        ("parallel_config: {world_size: 2, cp_size: 2}", "parallel_config.cp_size: 2 must be 1 for decode"),
        ("parallel_config: {world_size: 1, pp_size: 2}", "parallel_config.pp_size: 2 must be 1"),
        ("scheduler_config: {blok_size: 16}", "unknown key 'blok_size' in scheduler_config; did you mean"),
        ("disagg_config: {}", "disagg_config is not read from a file"),
        ("model_config: [", "line 1, column 16: "),
    ],
)
def test_a_file_that_cannot_work_is_one_line_and_exit_status_2(text: str, says: str) -> None:
    Path("decode.yaml").write_text(text)
    result = CliRunner().invoke(main, ["--role", "decode", "--model", "m", "--config", "decode.yaml"])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("pdcore.engine: decode.yaml: ")
    assert says in line


def test_what_is_known_and_not_used_is_one_line_at_the_start() -> None:
    Path("decode.yaml").write_text(
        "model_config: {model_path: nowhere, exe_mode: eager, enable_profiler: true}"
    )
    result = CliRunner().invoke(main, ["--role", "decode", "--config", "decode.yaml"])
    said, refused = result.output.splitlines()
    assert "keys=model_config.exe_mode,model_config.enable_profiler" in said
    assert "nowhere is no directory" in refused


def test_a_cache_of_less_than_a_block_is_refused_by_its_own_name() -> None:
    with pytest.raises(
        ConfigError, match=r"--kv-tokens / PDCORE_KV_TOKENS: 20 is less than one block of 1024"
    ):
        read(ETH0, kv_tokens="20", block_size="1024")
