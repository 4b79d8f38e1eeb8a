"""What a launch would refuse is said before: placeholders, stray words, and commands that mode pdcore cannot start."""

from __future__ import annotations

import pytest

from pdcore.group.spec import MODES
from tests.group.specs import Document, codes, group, judge

pytestmark = pytest.mark.unit

CUSTOM = {"backend": "custom"}


def commanded(command: str) -> Document:
    return group("custom", **CUSTOM, run_command=command)


PLACEHOLDERS: list[tuple[Document, str, str, str]] = [
    (commanded("serve {{x}}"), "run_command", "x", "there is no such placeholder"),
    (commanded("serve --port {{portt}}"), "run_command", "portt", "did you mean 'port'?"),
    (commanded("serve {{ports.bootstrap}}"), "run_command", "ports.bootstrap", "no port band of that name"),
    (commanded("serve {{peer.host}}"), "run_command", "peer.host", "no member of that role"),
    (commanded("serve {{run_dir}}"), "run_command", "run_dir", ""),
    (
        group("custom", **CUSTOM, run_command="serve {{port}}", decode={"env": {"A": "{{b}}"}}),
        "roles.decode.env.A",
        "b",
        "",
    ),
    (
        group("vllm-nixl", prefill={"backend_parameters": ["--a={{b.c}}"]}),
        "roles.prefill.backend_parameters",
        "b.c",
        "",
    ),
    (
        group("pdcore", router={"env": {"A": "{{peer.port}}"}}),
        "roles.router.env.A",
        "peer.port",
        "",
    ),
    (
        group("custom", router={"protocol": None, "run_command": "mine {{peer.url_encoded}}"}),
        "roles.router.run_command",
        "peer.url_encoded",
        "",
    ),
    (
        group("vllm-ascend-mooncake", prefill={"backend_parameters": ["--data-parallel-size=1"]}),
        "roles.prefill.backend_parameters",
        "roles.prefill.tp_size",
        "write --tensor-parallel-size",
    ),
]


@pytest.mark.parametrize(("document", "path", "name", "says"), PLACEHOLDERS)
def test_a_placeholder_that_no_place_fills_is_refused(
    document: Document, path: str, name: str, says: str
) -> None:
    found = [one for one in judge(document) if one.code == "placeholder_unresolved"]
    assert {(one.path, one.values["placeholder"]) for one in found} >= {(path, name)}
    assert {one.values["placeholder"] for one in found} == {name}
    assert says in found[0].message
    assert found[0].severity == "refused"


@pytest.mark.parametrize("mode", MODES)
def test_what_a_place_fills_and_templates_of_others_are_not(mode: str) -> None:
    env = {"A": "{{worker_ip}}:{{port}}", "B": "{{ jinja }} {{#if}}", "C": "{{instance_id}} {{model_path}}"}
    document = group(mode, env=env)
    if mode == "pdcore":
        env["A"] = "{{worker_ip}}"  # its engines pick their ports themselves
    assert codes(group(mode, env=env)) == []
    assert document["env"]


@pytest.mark.parametrize(
    ("role", "command", "expected"),
    [
        ("prefill", "sleep 10", ["command_not_native"]),
        ("decode", "sh -c 'exec vllm serve'", ["command_not_native"]),
        ("router", "sleep 10", ["command_not_native"]),
        ("prefill", "numactl -N 0 python -m pdcore.engine", []),
        ("router", "nice python3 -m pdcore.router", []),
    ],
)
def test_mode_pdcore_starts_only_its_own_programs(role: str, command: str, expected: list[str]) -> None:
    assert codes(group("pdcore", **{role: {"run_command": command}})) == expected


def test_a_command_of_the_whole_group_is_told_for_each_role_that_inherits_it() -> None:
    found = judge(group("pdcore", run_command="sleep 10"))
    assert [(one.code, one.path) for one in found if one.severity == "refused"] == [
        ("command_not_native", "run_command"),
        ("command_not_native", "run_command"),
    ]


@pytest.mark.parametrize("words", ["''", "'' x"])
def test_a_command_without_a_program_is_refused(words: str) -> None:
    assert set(codes(commanded(words))) == {"command_missing"}


@pytest.mark.parametrize(
    ("mode", "role", "parameters", "strays"),
    [
        ("pdcore", "prefill", ["many"], ["many"]),
        ("pdcore", "prefill", ["--dtype=float32", "many", "words"], ["many", "words"]),
        ("pdcore", "prefill", ["--dtype", "float32", "many"], ["many"]),
        ("pdcore", "prefill", ["--dtype float32"], []),
        ("pdcore", "router", ["--max-attempts=2", "many"], ["many"]),
        ("vllm-nixl", "router", ["many"], ["many"]),
        ("vllm-nixl", "prefill", ["many", "--a"], ["many"]),
        ("vllm-nixl", "prefill", ["--a=1", "many"], ["many"]),
        ("vllm-nixl", "prefill", ["--cuda-graph-sizes", "1", "2", "4", "--a", "-1"], []),
        ("custom", "prefill", ["many"], ["many"]),
    ],
)
def test_words_that_belong_to_no_flag_are_refused(
    mode: str, role: str, parameters: list[str], strays: list[str]
) -> None:
    found = judge(group(mode, **{role: {"backend_parameters": parameters}}))
    assert [one.values["given"] for one in found if one.code == "parameter_stray"] == strays


def test_a_persons_own_command_may_take_any_words() -> None:
    assert codes(group("custom", **CUSTOM, run_command="mine", backend_parameters=["many", "words"])) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (group("pdcore", env={"PDCORE_BLOCK_SIZE": "many"}), "env.PDCORE_BLOCK_SIZE"),
        (
            group("pdcore", decode={"env": {"ASCEND_TRANSFER_THREADS": "0"}}),
            "roles.decode.env.ASCEND_TRANSFER_THREADS",
        ),
        (
            group("vllm-nixl", router={"env": {"PDCORE_MAX_ATTEMPTS": "x"}}),
            "roles.router.env.PDCORE_MAX_ATTEMPTS",
        ),
    ],
)
def test_a_variable_that_a_program_of_ours_would_refuse_is_refused(document: Document, path: str) -> None:
    found = [one for one in judge(document) if one.severity == "refused"]
    assert {(one.code, one.path) for one in found} == {("variable_refused", path)}


def test_a_secret_that_is_wrong_is_not_repeated() -> None:
    (only,) = [one for one in judge(group("pdcore", prefill={"env": {"PDCORE_CURVE_SECRET": "s3cret"}}))][:1]
    assert only.code == "variable_refused"
    assert "s3cret" not in str(only) + str(only.document())
