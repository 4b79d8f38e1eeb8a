"""Rules R1 to R16 as a table, and those of a custom router."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.group.finding import SpecRefused
from pdcore.group.spec import spec_of
from tests.group.specs import Document, codes, group, judge, role

pytestmark = pytest.mark.unit

ENGINE_MODES = (
    *(
        "pdcore",
        "vllm-nixl",
        "vllm-mooncake",
        "sglang-mooncake",
        "sglang-nixl",
        "vllm-ascend-mooncake",
        "custom",
    ),
)


def with_roles(*names: str) -> Document:
    return group() | {"roles": [{"name": name} for name in names]}


CACHE = {"kind": "local", "size": "1Gi"}

REFUSED: list[tuple[str, Document, str, str]] = [
    ("R1", with_roles(), "roles_missing", "roles"),
    ("R2", with_roles("prefill", "prefill", "decode", "router"), "role_duplicate", "roles.prefill"),
    ("R2", with_roles("prefill", "decode", "router", "encoder"), "role_unknown", "roles.encoder"),
    (
        "R4",
        group(prefill={"resources": {"cpu": 1}}),
        "resources_on_engine_role",
        "roles.prefill.resources",
    ),
    ("R4", group(router={"resources": {"cpu": 0}}), "resources_not_positive", "roles.router.resources.cpu"),
    (
        "R4",
        group(router={"resources": {"memory": "-1Gi"}}),
        "resources_not_positive",
        "roles.router.resources.memory",
    ),
    ("R5", group(decode={"lora_list": ["a"]}), "lora_on_role", "roles.decode.lora_list"),
    (
        "R6",
        group(decode={"dependencies": ["nobody"]}),
        "dependency_unknown",
        "roles.decode.dependencies",
    ),
    ("R6", group(decode={"dependencies": ["decode"]}), "dependency_self", "roles.decode.dependencies"),
    (
        "R6",
        group(decode={"dependencies": ["prefill"]}, prefill={"dependencies": ["decode"]}),
        "dependency_cycle",
        "roles",
    ),
    ("R6", group(decode={"dependencies": ["router"]}), "dependency_cycle", "roles"),
    ("R9", with_roles("decode", "router"), "role_missing", "roles"),
    ("R9", with_roles("prefill", "router"), "role_missing", "roles"),
    ("R9 no router", with_roles("prefill", "decode"), "router_missing", "roles"),
    ("R9", with_roles("prefill", "decode", "router", "router"), "role_duplicate", "roles.router"),
    ("R10", group(lora_list=["a"]), "lora_with_disaggregation", "lora_list"),
    (
        "R12",
        group("custom", decode={"extended_kv_cache": CACHE}),
        "cache_in_custom_mode",
        "roles.decode.extended_kv_cache",
    ),
    ("R12 inherited", group("custom", extended_kv_cache=CACHE), "cache_in_custom_mode", "extended_kv_cache"),
    (
        "R14",
        group(router={"backend_parameters": ["--prefill=http://x:1"]}),
        "router_peer_flag",
        "roles.router.backend_parameters",
    ),
    (
        "R14",
        group(router={"backend_parameters": ["--decode", "http://x:1"]}),
        "router_peer_flag",
        "roles.router.backend_parameters",
    ),
    (
        "L18",
        group(router={"backend_parameters": ["--port=9000"]}),
        "router_address_flag",
        "roles.router.backend_parameters",
    ),
    (
        "L18",
        group("pdcore", router={"backend_parameters": ["--host", "::1"]}),
        "router_address_flag",
        "roles.router.backend_parameters",
    ),
    (
        "a flag that does not exist",
        group(router={"backend_parameters": ["--max-atempts=2"]}),
        "router_flag_unknown",
        "roles.router.backend_parameters",
    ),
    (
        "a value that is not taken",
        group("pdcore", router={"backend_parameters": ["--max-attempts=x"]}),
        "router_flag_refused",
        "roles.router.backend_parameters",
    ),
    ("R15", group(decode={"backend": "sglang"}), "backend_not_in_mode", "roles.decode.backend"),
    ("R15", group("sglang-nixl", backend="vLLM"), "backend_not_in_mode", "backend"),
    ("R16", group(disaggregation={"vendor": "ascend"}), "vendor_not_in_mode", "disaggregation.vendor"),
    (
        "R18",
        group(backend_parameters=["--kv-transfer-config", "NixlConnector"]),
        "kv_transfer_config_invalid",
        "backend_parameters",
    ),
    (
        "R18",
        group(decode={"backend_parameters": ["--kv_transfer_config=[]"]}),
        "kv_transfer_config_invalid",
        "roles.decode.backend_parameters",
    ),
    (
        "engine's port",
        group(prefill={"backend_parameters": ["--port=9000"]}),
        "engine_flag_owned",
        "roles.prefill.backend_parameters",
    ),
    (
        "engine's side",
        group("sglang-nixl", backend_parameters=["--disaggregation-mode", "null"]),
        "engine_flag_owned",
        "backend_parameters",
    ),
    ("custom", group("custom", decode={"backend": "custom"}), "command_missing", "roles.decode.run_command"),
    ("custom", group("custom", router={"protocol": None}), "custom_router_undecided", "roles.router"),
    ("custom", group("custom", router={"run_command": "my-router"}), "custom_router_twice", "roles.router"),
    ("protocol", group(router={"protocol": "nixl"}), "protocol_not_custom", "roles.router.protocol"),
]


@pytest.mark.parametrize(
    ("document", "code", "path"), [row[1:] for row in REFUSED], ids=[f"{row[0]} {row[2]}" for row in REFUSED]
)
def test_a_broken_rule_is_refused_with_code_and_place(document: Document, code: str, path: str) -> None:
    found = [finding for finding in judge(document) if finding.code == code]
    assert [(one.severity, one.path) for one in found][:1] == [("refused", path)]
    assert found[0].message
    assert found[0].remedy


@pytest.mark.parametrize("mode", ENGINE_MODES)
def test_a_plain_group_is_accepted_in_every_mode(mode: str) -> None:
    assert codes(group(mode)) == []


@pytest.mark.parametrize(
    "document",
    [
        group(router={"replicas": 3}),
        group(router={"resources": {"cpu": 0.5, "memory": "512Mi"}}),
        group(decode={"dependencies": ["prefill"]}),
        group(router={"dependencies": []}, decode={"dependencies": ["router"]}),
        group(router={"backend_parameters": ["--decode-policy=random"]}),
        group(disaggregation={"vendor": "nvidia"}),
        group("custom", prefill={"backend": "sglang"}),
        group("custom", prefill={"backend_parameters": ["--port=1", "--disaggregation-mode=null"]}),
        group("custom", router={"protocol": None, "run_command": "my-router --port 1"}),
        group("custom", run_command="serve", backend="custom", router={"protocol": None}),
        group(
            backend_parameters=['--kv-transfer-config={"kv_connector": "NixlConnector", "kv_port": {{port}}}']
        ),
    ],
)
def test_what_is_allowed_is_not_refused(document: Document) -> None:
    assert [one.code for one in judge(document) if one.severity == "refused"] == []


@pytest.mark.parametrize("replicas", [0, -1, 513, 10_000])
@pytest.mark.parametrize("name", ["prefill", "router"])
def test_a_role_has_at_least_one_member_and_not_thousands(name: str, replicas: int) -> None:
    with pytest.raises(SpecRefused) as wrong:
        spec_of(group("vllm-nixl", **{name: {"replicas": replicas}}))
    (only,) = wrong.value.findings
    assert (only.code, only.path) == ("out_of_range", f"roles.{name}.replicas")
    assert only.values == {"given": replicas, "lowest": 1, "highest": 512}


@pytest.mark.parametrize("backend", ["mindie", "VoxBox"])
@pytest.mark.parametrize("mode", ["vllm-nixl", "custom"])
def test_engines_that_nobody_here_knows_are_refused(mode: str, backend: str) -> None:
    with pytest.raises(SpecRefused) as wrong:
        spec_of(group(mode, backend=backend))
    assert [(one.code, one.path) for one in wrong.value.findings] == [("engine_unsupported", "backend")]


@pytest.mark.parametrize(
    ("mode", "policy", "expected"),
    [
        ("vllm-nixl", "recompute", []),
        ("vllm-mooncake", "recompute", []),
        *((mode, "fail", []) for mode in ENGINE_MODES),
        *(
            (mode, "recompute", ["load_failure_policy_unsupported"])
            for mode in ("pdcore", "sglang-mooncake", "sglang-nixl", "vllm-ascend-mooncake", "custom")
        ),
    ],
)
def test_r13_recompute_needs_a_connector_that_knows_it(mode: str, policy: str, expected: list[str]) -> None:
    assert codes(group(mode, disaggregation={"kv_load_failure_policy": policy})) == expected


@pytest.mark.parametrize(
    ("mode", "vendor", "cluster", "expected"),
    [
        ("vllm-nixl", None, {"ascend"}, ["vendor_not_in_cluster"]),
        ("vllm-nixl", None, {"ascend", "nvidia"}, []),
        ("vllm-nixl", None, set(), []),
        ("vllm-nixl", None, None, []),
        ("vllm-ascend-mooncake", "ascend", {"nvidia"}, ["vendor_not_in_cluster"]),
        ("pdcore", "cpu", {"ascend"}, ["vendor_not_in_cluster"]),
        ("pdcore", None, {"cpu"}, []),
        ("custom", "amd", {"nvidia"}, ["vendor_not_in_cluster"]),
        ("custom", "amd", {"amd"}, []),
        ("custom", None, {"amd"}, []),
        ("vllm-nixl", "amd", {"amd"}, ["vendor_not_in_mode"]),
    ],
)
def test_r16_the_vendor_must_fit_mode_and_cluster(
    mode: str, vendor: str | None, cluster: set[str] | None, expected: list[str]
) -> None:
    assert codes(group(mode, disaggregation={"vendor": vendor}), vendors=cluster) == expected


def test_a_peer_flag_is_refused_with_what_can_be_adjusted_instead() -> None:
    found = judge(group(router={"backend_parameters": ["--prefill", "x"]}))
    assert [one.values for one in found] == [{"flag": "--prefill", "given": "x"}]
    assert "--decode-policy" in found[0].remedy


def test_a_router_of_the_users_own_may_be_given_any_flag() -> None:
    document = group(
        "custom", router={"protocol": None, "run_command": "r", "backend_parameters": ["--port=1"]}
    )
    assert codes(document) == []


def test_every_reason_is_given_at_once() -> None:
    document: dict[str, Any] = group(
        lora_list=["a"],
        disaggregation={"vendor": "ascend", "kv_load_failure_policy": "recompute"},
        router={"backend_parameters": ["--port=1", "--prefill=x"]},
    )
    role(document, "decode")["dependencies"] = ["decode", "nobody"]
    role(document, "prefill")["backend"] = "sglang"
    assert set(codes(document)) == {
        "lora_with_disaggregation",
        "dependency_self",
        "dependency_unknown",
        "backend_not_in_mode",
        "vendor_not_in_mode",
        "router_address_flag",
        "router_peer_flag",
    }
