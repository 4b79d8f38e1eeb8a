"""``pdcore doctor store`` as a person and a program read it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pdcore.cli import main
from tests.support.etcd_server import etcd_server
from tests.support.processes import free_port

pytestmark = pytest.mark.integration


def test_findings_are_lines_with_what_to_do() -> None:
    with etcd_server() as etcd:
        done = CliRunner().invoke(main, ["doctor", "store", "--store", etcd.url])
    assert done.exit_code == 0, done.output
    assert "ok    alarms" in done.stdout
    assert "warn  members" in done.stdout
    assert "→ run 3, each on a machine and a disk of its own" in done.stdout


def test_what_has_to_be_mended_is_exit_status_1() -> None:
    store = f"etcd://127.0.0.1:{free_port()}"
    arguments = ["doctor", "store", "--json", "--store", store, "--store-timeout-s", "0.5"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert (document["store"], document["ok"]) == (store, False)
    assert document["findings"][0]["level"] == "fail"


def test_a_machine_without_devices_lacks_every_part_by_name() -> None:
    done = CliRunner().invoke(main, ["doctor", "ascend"])
    assert done.exit_code == 1, done.output
    for about in ("driver", "devices", "CANN", "torch", "/etc/hccn.conf", "NIC", "link", "transfer engines"):
        assert f"fail  {about} " in done.stdout, about
    assert done.stdout.count("→") == done.stdout.count("fail  ")
    document = json.loads(CliRunner().invoke(main, ["doctor", "ascend", "--json"]).stdout)
    assert document["ok"] is False
    assert all(finding["todo"] for finding in document["findings"])


def test_a_store_that_cannot_be_named_is_a_line_and_exit_status_2() -> None:
    done = CliRunner().invoke(main, ["doctor", "store", "--store", "http://h"])
    assert done.exit_code == 2
    assert "--store / PDCORE_STORE" in done.stderr
