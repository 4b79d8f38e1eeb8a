"""``pdcore group init``, ``schema`` and ``check`` as a person meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pdcore.cli import main
from pdcore.group.spec import MODES
from pdcore.group.validation.rules import CODES, NOT_APPLICABLE
from tests.group.specs import LLAMA, group

pytestmark = pytest.mark.unit


def pdcore(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["group", *arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(LLAMA))
    return directory


def written(tmp_path: Path, document: Any) -> str:
    file = tmp_path / "group.yaml"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(file)


@pytest.mark.parametrize("mode", MODES)
def test_what_init_writes_is_accepted(mode: str, tmp_path: Path, model: Path) -> None:
    example = pdcore("init", mode, "--model", str(model))
    assert example.exit_code == 0
    file = written(tmp_path, example.output)
    checked = pdcore("check", file)
    assert (checked.exit_code, checked.output) == (0, f"{file}: accepted\n")


def test_a_refused_group_is_exit_2_with_a_row_and_a_remedy_per_reason(tmp_path: Path) -> None:
    file = written(tmp_path, group(lora_list=["a"], router={"backend_parameters": ["--port=1"]}))
    checked = pdcore("check", file)
    assert checked.exit_code == 2
    rows = [line for line in checked.output.splitlines() if line.startswith("refused")]
    assert [row.split()[1] for row in rows] == ["lora_with_disaggregation", "router_address_flag"]
    assert checked.output.count("→") == 2
    assert checked.output.endswith(f"{file}: refused, 2 reasons\n")


def test_advice_refuses_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, group(prefill={"replicas": 1}))
    checked = pdcore("check", file)
    assert checked.exit_code == 0
    assert checked.output.startswith("advisory  pd_may_not_help")
    assert checked.output.endswith(f"{file}: accepted, 1 of advice\n")


def test_programs_read_code_path_values_remedy_and_rule(tmp_path: Path) -> None:
    flags = ["--max-model-len=128k"], ["--max-model-len=32k"]
    document = group(prefill={"backend_parameters": flags[0]}, decode={"backend_parameters": flags[1]})
    checked = pdcore("check", "--json", written(tmp_path, document))
    assert checked.exit_code == 2
    read = json.loads(checked.output)
    assert (read["group"], read["accepted"]) == ("g", False)
    (only,) = read["findings"]
    assert only["remedy"]
    assert {key: only[key] for key in ("code", "severity", "path", "values", "rule")} == {
        "code": "pairing_context_length",
        "severity": "refused",
        "path": "roles.decode.backend_parameters",
        "values": {"factor": "context length", "prefill": "128k (128000)", "decode": "32k (32000)"},
        "rule": "6.2",
    }
    assert [one["rule"] for one in read["not_applicable"]] == list(NOT_APPLICABLE)


def test_the_clusters_vendors_may_be_named(tmp_path: Path) -> None:
    file = written(tmp_path, group())
    assert pdcore("check", file, "--vendor", "nvidia").exit_code == 0
    refused = pdcore("check", file, "--vendor", "ascend", "--vendor", "cpu")
    assert refused.exit_code == 2
    assert "vendor_not_in_cluster" in refused.output
    assert "ascend, cpu" in refused.output


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("name: [", "line 1"),
        ("{name: a, name: b}", "stands there twice"),
        ("[]", "wrong_value"),
        ({}, "missing_key"),
        (group(decode={"replicas": 10_000}), "10000 is not from 1 to 512"),
        (group("pdcore", model="/nowhere/at/all"), "model_missing"),
        (group(decode={"dependencies": ["router"]}), "dependency_cycle"),
        (
            group("vllm-ascend-mooncake", backend_parameters=["--tp=80"]),
            "one prefill needs 81 ports (1 for HTTP, 80 for kv_port), the range 40000-40063 has 64",
        ),
    ],
)
def test_bad_input_is_reasons_and_exit_2(tmp_path: Path, document: Any, says: str) -> None:
    checked = pdcore("check", written(tmp_path, document))
    assert checked.exit_code == 2
    assert "Traceback" not in checked.output
    assert says in " ".join(checked.output.split())


def test_a_file_that_is_not_there_is_exit_2() -> None:
    checked = pdcore("check", "/nowhere.yaml")
    assert checked.exit_code == 2
    assert checked.output.startswith("refused   file_unreadable the group's file: cannot read /nowhere.yaml")


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"name: [", "write plain YAML there"),
        (b"a: *x", "write the value in its place"),
        (b"a: 1\na: 2", "keep one of the two"),
        (b"a: \xff", "save it as UTF-8"),
        (b"a: " + b"[" * 100, "nested so deeply"),
        (b"#" * 70_000, "leave out what is no part of a group"),
        (None, "name a file that is there"),
        (Path, "name the file in it"),
    ],
)
def test_the_remedy_for_a_file_is_about_what_is_wrong_with_it(
    tmp_path: Path, content: bytes | type | None, remedy: str
) -> None:
    file = tmp_path / "group.yaml"
    if content is Path:
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    read = json.loads(pdcore("check", "--json", str(file)).output)
    (only,) = read["findings"]
    assert only["code"] == "file_unreadable"
    assert remedy in only["remedy"]


def test_one_reason_is_no_plural(tmp_path: Path) -> None:
    file = written(tmp_path, group(lora_list=["a"]))
    assert pdcore("check", file).output.endswith(f"{file}: refused, 1 reason\n")


def test_also_a_file_that_cannot_be_read_is_a_verdict_for_programs(tmp_path: Path) -> None:
    checked = pdcore("check", "--json", written(tmp_path, "{name: a, name: b}"))
    assert checked.exit_code == 2
    read = json.loads(checked.output)
    assert (read["group"], read["accepted"]) == (None, False)
    assert [one["code"] for one in read["findings"]] == ["file_unreadable"]


def test_the_schema_is_json() -> None:
    assert json.loads(pdcore("schema").output)["title"] == "pdcore group"


@pytest.mark.integration
def test_a_check_loads_nothing_that_is_slow(tmp_path: Path) -> None:
    script = (
        "import sys; from pdcore.cli import main;"
        "main(['group', 'check', sys.argv[1]], standalone_mode=False);"
        "print(sorted({'torch', 'httpx', 'grpc', 'rich', 'structlog', 'uvicorn', 'starlette'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, written(tmp_path, group())],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.splitlines()[-1] == "[]"


def test_a_code_stands_for_one_rule() -> None:
    assert all(code == code.lower().replace("-", "_") for code in CODES)
    assert {"R1", "R2", "R3", "R4", "R5", "R6", "R9", "R10", "R11", "R12", "R13"} <= set(CODES.values())
    assert {"R14", "R15", "R16", "R18", "R19", "R20", "6.2", "6.3"} <= set(CODES.values())
    assert {rule.split()[0] for rule in NOT_APPLICABLE} == {"R7", "R8", "R17", "R20"}
