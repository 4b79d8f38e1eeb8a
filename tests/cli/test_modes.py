"""``pdcore modes`` as a person and a program read it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.cli.terminal import PIPE_COLUMNS
from pdcore.group.spec import MODES
from tests.support.etcd_server import etcd_server
from tests.support.processes import free_port


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["modes", *arguments])


@pytest.mark.unit
def test_every_mode_is_listed() -> None:
    table = run("list")
    assert table.exit_code == 0, table.output
    for name in MODES:
        assert name in table.stdout
    document = json.loads(run("list", "--json").stdout)
    assert [one["name"] for one in document] == list(MODES)
    nixl = document[1]
    assert nixl["lease"]["platform_default_s"] == 60
    assert nixl["transfer_metrics"]["counted_role"] == "decode"
    assert nixl["caches"]["services"]["lmcache"]["roles"]["decode"]["refused"]


@pytest.mark.unit
@pytest.mark.parametrize("width", ["", "160", "100", "72"])
def test_the_list_keeps_to_the_columns_and_explains_its_words(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = run("list").stdout.splitlines()
    assert max(map(len, lines)) <= int(width or PIPE_COLUMNS)
    assert any(line.split()[:2] == ["vllm-ascend-mooncake", "*"] for line in lines)
    text = "\n".join(lines)
    for word in (
        "two_hop",
        "same_dispatch",
        "user_provided",
        "counted at",
        "preferred",
        "dynamic",
        "KV lease",
    ):
        assert word in text
        assert word in run("list", "--help").stdout


@pytest.mark.unit
def test_without_a_store_the_other_way_to_name_vendors_is_told() -> None:
    done = run("resolve", "--engine", "vllm", "--store", f"etcd://127.0.0.1:{free_port()}")
    assert done.exit_code == 1
    assert "--vendors" in done.stderr


@pytest.mark.unit
@pytest.mark.parametrize("name", MODES)
def test_each_mode_is_shown(name: str) -> None:
    done = run("show", name)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{name}: ")
    assert "-m pdcore.router" in done.stdout
    assert json.loads(run("show", name, "--json").stdout)["name"] == name


@pytest.mark.unit
def test_a_mode_that_is_not_there_is_exit_status_2() -> None:
    done = run("show", "vllm-nixle")
    assert done.exit_code == 2
    assert "there is no mode 'vllm-nixle'" in done.stderr
    assert "vllm-nixl" in done.stderr


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--engine", "vLLM", "--vendors", "nvidia"], 0, "vllm-nixl: vLLM, KV through NIXL"),
        (
            ["--engine", "vllm", "--vendors", "nvidia, ascend"],
            1,
            "multiple_vendors: accelerators of ascend, nvidia",
        ),
        (
            ["--engine", "vllm", "--vendors", "nvidia,ascend", "--vendor", "ascend"],
            0,
            "vllm-ascend-mooncake: ",
        ),
        (["--engine", "vllm", "--vendors", "amd"], 1, "no_built_in_recipe: "),
        (["--engine", "vllm", "--vendors", ""], 1, "vendors_unknown: "),
        (["--engine", "vllm", "--vendors", "amd", "--vendor", "nvidia"], 1, "vendor_not_in_cluster: "),
    ],
)
def test_a_mode_is_derived_or_the_code_says_why_none(arguments: list[str], status: int, said: str) -> None:
    done = run("resolve", *arguments)
    assert done.exit_code == status, done.output
    assert done.stdout.startswith(said)
    assert all(name in done.stdout for name in MODES)


@pytest.mark.unit
def test_the_document_has_what_was_decided_on() -> None:
    done = run("resolve", "--engine", "sglang", "--vendors", "nvidia", "--json")
    document = json.loads(done.stdout)
    assert (document["mode"], document["code"], document["vendors"]) == ("sglang-mooncake", None, ["nvidia"])
    assert [one["mode"] for one in document["options"] if one["eligible"]] == [
        "sglang-mooncake",
        "sglang-nixl",
        "custom",
    ]


@pytest.mark.unit
def test_a_vendor_that_nobody_knows_is_exit_status_2() -> None:
    done = run("resolve", "--engine", "vllm", "--vendors", "nvidea")
    assert done.exit_code == 2
    assert "there is no vendor 'nvidea'" in done.stderr


@pytest.mark.integration
def test_without_vendors_the_fleet_is_asked() -> None:
    with etcd_server() as etcd:
        done = run("resolve", "--engine", "vllm", "--store", etcd.url, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["code"] == "vendors_unknown"


@pytest.mark.integration
def test_a_store_that_is_away_is_said_in_one_line() -> None:
    store = f"etcd://127.0.0.1:{free_port()}"
    done = run("resolve", "--engine", "vllm", "--store", store, "--store-timeout-s", "0.3")
    assert done.exit_code == 1
    assert f"cannot read the store at {store}" in done.stderr
