"""A group's file is read into what it says, or refused with everything that is wrong with its form."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pdcore.config.yaml_file import MAX_BYTES
from pdcore.errors import ConfigError
from pdcore.group.finding import Finding, SpecRefused
from pdcore.group.kinds import declared
from pdcore.group.spec import (
    OVERRIDES,
    ROLE_OWN,
    ExtendedKvCache,
    GpuSelector,
    GroupSpec,
    Network,
    RoleSpec,
    parse_spec,
    read_spec,
    spec_of,
)
from tests.group.specs import group

pytestmark = pytest.mark.unit

WHOLE = """
name: chat
model: /models/Qwen3-8B/
disaggregation:
  mode: vllm-nixl
  vendor: nvidia
  readiness: all
  kv_load_failure_policy: recompute
backend: vLLM
backend_version: 0.27.1
backend_parameters: [--max-model-len, 4096]
env: {NUMBER: 1, TEXT: a}
gpu_selector: {gpu_ids: ["m1:H200:0"], gpus_per_replica: 1}
extended_kv_cache: {kind: shared, provider: LMCache, service: "cache:5555", options: {a: [1, {b: null}]}}
speculative_config: {method: mtp, num_speculative_tokens: 2}
network: {kv_transfer_ifname: eth1, service_port_range: 41000-41100}
restart_on_error: false
roles:
  - name: prefill
    replicas: 2
    backend_parameters: []
    env: {}
  - name: decode
  - name: router
    replicas: 3
    resources: {cpu: 4, memory: 4Gi}
"""


def findings(document: object) -> tuple[Finding, ...]:
    with pytest.raises(SpecRefused) as wrong:
        spec_of(document)
    return wrong.value.findings


def test_every_field_is_what_the_file_says() -> None:
    spec = parse_spec(WHOLE, "f")
    assert (spec.name, spec.mode, spec.vendor, spec.readiness) == ("chat", "vllm-nixl", "nvidia", "all")
    assert spec.kv_load_failure_policy == "recompute"
    assert (spec.backend, spec.backend_version) == ("vllm", "0.27.1")
    assert spec.backend_parameters == ("--max-model-len", "4096")
    assert spec.env == {"NUMBER": "1", "TEXT": "a"}
    assert spec.gpu_selector == GpuSelector(gpu_ids=("m1:H200:0",), gpus_per_replica=1)
    assert spec.extended_kv_cache == ExtendedKvCache(
        kind="shared", provider="lmcache", service="cache:5555", options={"a": [1, {"b": None}]}
    )
    assert spec.network == Network(kv_transfer_ifname="eth1", service_port_range="41000-41100")
    assert not spec.restart_on_error
    assert spec.replicas == {"prefill": 2, "decode": 1, "router": 3}
    assert spec.served_name == "Qwen3-8B"


def test_null_inherits_and_an_empty_list_or_mapping_is_an_override() -> None:
    spec = parse_spec(WHOLE, "f")
    prefill, decode = spec.role("prefill"), spec.role("decode")
    assert prefill is not None
    assert decode is not None
    assert (prefill.backend_parameters, prefill.env) == ((), {})
    assert (decode.backend_parameters, decode.env) == (None, None)


def test_the_document_that_is_saved_holds_what_was_written_and_nothing_else() -> None:
    document = group(decode={"env": {"A": "1"}, "backend": None})
    assert spec_of(document).document == document
    assert json.loads(json.dumps(spec_of(document).document)) == document


def test_a_role_overrides_all_that_is_not_its_own() -> None:
    assert ROLE_OWN == ("name", "replicas", "dependencies", "resources", "protocol")
    assert set(OVERRIDES) == {one.name for one in declared(RoleSpec)} - set(ROLE_OWN)
    assert set(OVERRIDES) <= {one.name for one in declared(GroupSpec)}


def test_every_unknown_key_is_refused_by_name_and_all_of_them_at_once() -> None:
    document = group(wat=1, decode={"bogus": 1, "backend_parameter": []}, disaggregation={"moed": "x"})
    document["gpu_selector"] = {"gpus": 1}
    found = findings(document)
    assert {one.code for one in found} == {"unknown_key"}
    assert [one.path for one in found] == [
        "wat",
        "gpu_selector.gpus",
        "disaggregation.moed",
        "roles.decode.bogus",
        "roles.decode.backend_parameter",
    ]
    hints = [one.message.partition("; did you mean ")[2] for one in found]
    assert (hints[2], hints[4], hints[0]) == ("'mode'?", "'backend_parameters'?", "")


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("replicas", "roles[].replicas"),
        ("scaling_schedule", "pdcore group scale"),
        ("gather", "Kubernetes"),
        ("mode", "under disaggregation"),
    ],
)
def test_keys_of_other_systems_are_refused_with_what_to_do_here(key: str, instead: str) -> None:
    (only,) = findings(group() | {key: 1})
    assert (only.code, only.path) == ("unknown_key", key)
    assert instead in only.remedy


@pytest.mark.parametrize(
    ("document", "code", "path"),
    [
        ([], "wrong_value", ""),
        (None, "wrong_value", ""),
        ({}, "missing_key", "name"),
        (group(name="a/b"), "wrong_value", "name"),
        (group(name=None), "missing_key", "name"),
        (group(model=None), "missing_key", "model"),
        (group(model=""), "wrong_value", "model"),
        (group(model_name="a b"), "wrong_value", "model_name"),
        (group(disaggregation={"mode": "vllm"}), "wrong_value", "disaggregation.mode"),
        (group(disaggregation={"vendor": "acme"}), "wrong_value", "disaggregation.vendor"),
        (group(roles={}), "wrong_value", "roles"),
        (group(roles=[1]), "wrong_value", "roles[0]"),
        (group(prefill={"replicas": "2"}), "wrong_value", "roles.prefill.replicas"),
        (group(prefill={"replicas": True}), "wrong_value", "roles.prefill.replicas"),
        (group(prefill={"replicas": 1.0}), "wrong_value", "roles.prefill.replicas"),
        (group(backend_parameters="--x"), "wrong_value", "backend_parameters"),
        (group(backend_parameters=[True]), "wrong_value", "backend_parameters[0]"),
        (group(backend_parameters=["--x"] * 513), "wrong_value", "backend_parameters"),
        (group(backend_parameters=["x" * 8193]), "wrong_value", "backend_parameters[0]"),
        (group(env={"A": True}), "wrong_value", "env.A"),
        (group(env={"A": 0.1}), "wrong_value", "env.A"),
        (group(env={1: "a"}), "wrong_value", "env"),
        (group(env=["A=1"]), "wrong_value", "env"),
        (group(speculative_config={"a": datetime.date(2026, 1, 1)}), "wrong_value", "speculative_config.a"),
        (group(speculative_config={"a": float("nan")}), "wrong_value", "speculative_config.a"),
        (group(speculative_config={"a": 10**400}), "wrong_value", "speculative_config.a"),
        (group(speculative_config={"a": {1: 2}}), "wrong_value", "speculative_config.a"),
        (group(env={"A=B": "c"}), "wrong_value", "env"),
        (group(env={"": "c"}), "wrong_value", "env"),
        (group(env="TOKEN=secret"), "wrong_value", "env"),
        (group(decode={"name": "a b"}), "wrong_value", "roles.a b.name"),
        (group(router={"resources": {"cpu": float("inf")}}), "wrong_value", "roles.router.resources.cpu"),
        (group(router={"resources": {"cpu": 10**400}}), "wrong_value", "roles.router.resources.cpu"),
        (group(gpu_selector={"gpu_ids": ["0"]}), "wrong_value", "gpu_selector.gpu_ids[0]"),
        (group(network={"service_port_range": "40000"}), "wrong_value", "network.service_port_range"),
        (group(restart_on_error="yes"), "wrong_value", "restart_on_error"),
        (group(router={"resources": {"cpu": "2"}}), "wrong_value", "roles.router.resources.cpu"),
        (group(router={"protocol": "two_hop"}), "wrong_value", "roles.router.protocol"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_place(document: Any, code: str, path: str) -> None:
    found = findings(document)
    assert (code, path) in [(one.code, one.path) for one in found]
    assert all(one.remedy and one.message for one in found)


@pytest.mark.parametrize(
    ("document", "message", "remedy"),
    [
        (None, "the file is empty", "pdcore group init MODE"),
        ([1], "the file is a list, not a mapping", "pdcore group init MODE"),
        ("words", "the file is 'words', not a mapping", "pdcore group init MODE"),
        (group(backend_version=0.27), "0.27 is not a version, as a text", 'put it in quotes, like "0.27"'),
        (group(model=5), "5 is not a text", 'put it in quotes, like "5"'),
        (group(env={"A": True}), "true is not a text", "put it in quotes"),
        (group(model=datetime.date(2026, 1, 1)), "a date is not a text", "put it in quotes"),
        (group(env={"A": None}), "nothing is not a text", "write a text"),
        (group(roles={"prefill": 1}), "a mapping is not a list of", "behind a dash"),
        (group(backend_parameters="--x"), "'--x' is not a list of", "behind a dash"),
        (
            group(backend_parameters=["--x"] * 513),
            "a list of 513 items is not a list of at most 512",
            "at most",
        ),
        (group(env=["A=1"]), "a list is not a mapping", "NAME: VALUE"),
        (group(env="A=1"), "a text is not a mapping", "NAME: VALUE"),
        (group(roles=[None]), "nothing is not a mapping", "NAME: VALUE"),
        (group(speculative_config={"a": b"1"}), "bytes is not", ""),
        (dict([*group().items(), (None, 1)]), "there is no key 'null' here", "remove it"),
        (dict([*group().items(), (1, 1)]), "there is no key '1' here", "remove it"),
    ],
)
def test_messages_are_in_the_words_of_the_file(document: Any, message: str, remedy: str) -> None:
    (only,) = findings(document)
    assert message in only.message
    assert remedy in only.remedy
    told = json.dumps(only.document())
    assert not [word for word in ("'dict'", "'list'", "'str'", "None", '"dict"', "True") if word in told]


def test_roles_of_one_name_are_told_apart_by_number() -> None:
    document = group() | {"roles": [{"name": "prefill", "replicas": 0}, {"name": "prefill", "replicas": 0}]}
    assert [one.path for one in findings(document)] == ["roles[0].replicas", "roles[1].replicas"]


def test_what_stands_where_variables_belong_is_not_repeated() -> None:
    (only,) = findings(group(env="TOKEN=hunter2"))
    assert "hunter2" not in str(only)
    assert "hunter2" not in json.dumps(only.document())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: [", "line 1"),
        ("just words: and: colons", "line 1"),
        ("name: a\nname: b", "line 2, column 1: the key 'name' stands there twice"),
        ("roles:\n- {name: prefill, name: decode}", "the key 'name' stands there twice"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("x: " + "[" * 9, "nested deeper"),
    ],
)
def test_what_is_no_plain_yaml_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_spec(text, "group.yaml")
    (line,) = wrong.value.problems
    assert line.startswith("group.yaml: ")
    assert says in line


def test_a_file_is_bounded_and_its_absence_is_a_reason(tmp_path: Path) -> None:
    long = tmp_path / "long.yaml"
    long.write_text("name: " + "x" * MAX_BYTES)
    with pytest.raises(ConfigError, match="longer than"):
        read_spec(long)
    with pytest.raises(ConfigError, match="No such file"):
        read_spec(tmp_path / "none.yaml")
