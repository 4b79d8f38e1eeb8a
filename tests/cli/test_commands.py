"""The command as a person runs it: a process with arguments, output and an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdcore import __version__
from pdcore.cli import main
from pdcore.config import StoreAccess
from pdcore.registry.connect import open_store
from pdcore.registry.store import Put
from pdcore.topology.keys import Keyspace
from tests.group.small_fleet import fleet
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.processes import free_port

COMMANDS = ("up", "demo", "topology", "demo-model", "serve")


def pdcore(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdcore", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environ or {})},
        check=False,
    )


@pytest.mark.unit
def test_help_teaches_how_to_start() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    for word in (*COMMANDS, "python -m pdcore.router", "python -m pdcore.engine --role prefill", "PDCORE_"):
        assert word in text


@pytest.mark.unit
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4


@pytest.mark.unit
def test_the_version_is_the_packages() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--port", "http"], "--port / PDCORE_PORT"),
        (["up", "--model", "/m", "--prefill", "0"], "--prefill and --decode must both be at least 1"),
        (["up", "--model", "/m"], "--model / PDCORE_MODEL: /m is no directory"),
        (
            ["topology", "--admin-token-file", "/m"],
            "--admin-token-file / PDCORE_ADMIN_TOKEN_FILE: /m: No such file",
        ),
        (["topology", "--router-ca", "/m"], "--router-ca / PDCORE_ROUTER_CA: /m: No such file"),
        (["topology", "--store", "http://h"], "--store / PDCORE_STORE"),
        (["topology", "--cluster", "a/b"], "--cluster / PDCORE_CLUSTER"),
    ],
)
def test_what_cannot_work_is_a_line_and_exit_status_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.unit
def test_up_without_etcd_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["up", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        "pdcore up: etcd is not installed; install it (Debian: apt-get install etcd-server etcd-client), "
        "or name a store that runs: --store / PDCORE_STORE etcd://HOST:PORT"
    ]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


@pytest.fixture
async def fleet_store(etcd: EtcdServer) -> str:
    view = Keyspace(cluster="shown").view
    async with open_store(StoreAccess(url=etcd.url, timeout_s=5)) as store:
        await store.commit((), tuple(Put(view + key, value) for key, value in fleet().items()))
    return etcd.url


@pytest.mark.integration
def test_topology_prints_the_fleet_as_a_table(fleet_store: str) -> None:
    shown = pdcore("topology", "--store", fleet_store, "--cluster", "shown")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "cluster shown at revision" in shown.stdout
    assert "no: state is starting; rank 0.0.0 is missing" in shown.stdout


@pytest.mark.integration
def test_topology_prints_the_fleet_as_json(fleet_store: str) -> None:
    shown = pdcore("topology", "--json", environ={"PDCORE_STORE": fleet_store, "PDCORE_CLUSTER": "shown"})
    assert (shown.returncode, shown.stderr) == (0, "")
    read = json.loads(shown.stdout)
    assert [instance["instance_id"] for instance in read["instances"]] == ["p0", "d0"]
    assert read["store"] == fleet_store


@pytest.mark.integration
def test_an_unreachable_store_is_a_line_and_exit_status_1() -> None:
    shown = pdcore("topology", "--store", f"etcd://127.0.0.1:{free_port()}")
    assert shown.returncode == 1
    (line,) = shown.stderr.splitlines()
    assert line.startswith("pdcore topology: cannot read the store at etcd://127.0.0.1:")
    assert "--store / PDCORE_STORE" in line


@pytest.mark.integration
def test_output_nobody_reads_is_no_traceback(fleet_store: str) -> None:
    command = f"{sys.executable} -m pdcore topology --store {fleet_store} --cluster shown"
    run = subprocess.run(
        ["bash", "-c", f"{command} | true"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in run.stderr
