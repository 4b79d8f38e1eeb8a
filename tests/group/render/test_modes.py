"""What prefill, decode and router of every mode are started with, to the byte."""

from __future__ import annotations

import shlex

import pytest

from tests.group.render.rendering import BASE, NIC, PORT, W, member, peers, spec

pytestmark = pytest.mark.unit

VLLM = f"vllm serve /models/qwen --host {W} --port {PORT} --served-model-name qwen"
SGLANG = f"python3 -m sglang.launch_server --model-path /models/qwen --host {W} --port {PORT} --served-model-name qwen"
NATIVE = (
    "--group g --generation 1 --host 10.0.0.7 --port 0 --bootstrap-port 0 --store etcd://10.0.0.1:2379 "
    "--cluster default --model /models/qwen --model-name qwen"
)
ROUTER = f"python3 -m pdcore.router --host {W} --port {PORT} --admin-port {BASE}"
POLICIES = "--prefill-policy prefix_affinity --decode-policy round_robin"
TOLD = "--prefill http://10.0.0.7:40000 --prefill http://10.0.0.8:40010 --decode http://10.0.0.9:40020"
TOLD_BOOTSTRAP = (
    "--prefill http://10.0.0.7:40000,bootstrap=40001 --prefill http://10.0.0.8:40010,bootstrap=40001 "
    "--decode http://10.0.0.9:40020"
)


def ascend(role: str) -> str:
    return (
        '{"kv_connector":"MooncakeHybridConnector","kv_role":"' + role + '","kv_port":40001,'
        '"kv_connector_extra_config":{"prefill":{"tp_size":8,"dp_size":1},"decode":{"tp_size":4,"dp_size":2}}}'
    )


NIXL_ENV = {
    "VLLM_NIXL_SIDE_CHANNEL_HOST": W,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": str(BASE),
    "UCX_NET_DEVICES": NIC,
}
ASCEND_ENV = {
    "HCCL_IF_IP": W,
    "HCCL_SOCKET_IFNAME": NIC,
    "GLOO_SOCKET_IFNAME": NIC,
    "TP_SOCKET_IFNAME": NIC,
    "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60",
}
ASCEND_SIZES = {
    "prefill": {"backend_parameters": ["--tensor-parallel-size=8"]},
    "decode": {"backend_parameters": ["--tensor-parallel-size", "4", "--data-parallel-size=2"]},
}
ENGINES: list[tuple[str, str, list[str], dict[str, str]]] = [
    (
        "vllm-nixl",
        "prefill",
        [
            *VLLM.split(),
            "--kv-transfer-config",
            '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail",'
            '"kv_connector_extra_config":{"kv_lease_duration":60}}',
        ],
        NIXL_ENV,
    ),
    (
        "vllm-nixl",
        "decode",
        [
            *VLLM.split(),
            "--kv-transfer-config",
            '{"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"fail"}',
        ],
        NIXL_ENV,
    ),
    (
        "vllm-mooncake",
        "prefill",
        [
            *VLLM.split(),
            "--kv-transfer-config",
            '{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail"}',
        ],
        {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(BASE), "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60"},
    ),
    (
        "vllm-mooncake",
        "decode",
        [
            *VLLM.split(),
            "--kv-transfer-config",
            '{"kv_connector":"MooncakeConnector","kv_role":"kv_consumer","kv_load_failure_policy":"fail"}',
        ],
        {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "60"},
    ),
    (
        "sglang-mooncake",
        "prefill",
        f"{SGLANG} --disaggregation-mode prefill --disaggregation-bootstrap-port {BASE} "
        "--disaggregation-transfer-backend mooncake".split(),
        {"MC_TCP_ENABLE_CONNECTION_POOL": "1", "SGLANG_ENABLE_FAILED_SESSION_PROBE": "true"},
    ),
    (
        "sglang-mooncake",
        "decode",
        f"{SGLANG} --disaggregation-mode decode --disaggregation-transfer-backend mooncake".split(),
        {"MC_TCP_ENABLE_CONNECTION_POOL": "1"},
    ),
    (
        "sglang-nixl",
        "prefill",
        f"{SGLANG} --disaggregation-mode prefill --disaggregation-bootstrap-port {BASE} "
        "--disaggregation-transfer-backend nixl".split(),
        {"SGLANG_DISAGGREGATION_NIXL_BACKEND": "UCX", "UCX_NET_DEVICES": NIC},
    ),
    (
        "sglang-nixl",
        "decode",
        f"{SGLANG} --disaggregation-mode decode --disaggregation-transfer-backend nixl".split(),
        {"SGLANG_DISAGGREGATION_NIXL_BACKEND": "UCX", "UCX_NET_DEVICES": NIC},
    ),
    (
        "vllm-ascend-mooncake",
        "prefill",
        [*VLLM.split(), "--kv-transfer-config", ascend("kv_producer"), "--tensor-parallel-size=8"],
        ASCEND_ENV,
    ),
    (
        "vllm-ascend-mooncake",
        "decode",
        [
            *VLLM.split(),
            "--kv-transfer-config",
            ascend("kv_consumer"),
            *("--tensor-parallel-size", "4", "--data-parallel-size=2"),
        ],
        ASCEND_ENV,
    ),
    (
        "pdcore",
        "prefill",
        f"python3 -m pdcore.engine --role prefill --instance-id g-1-prefill-1 {NATIVE}".split(),
        {},
    ),
    (
        "pdcore",
        "decode",
        f"python3 -m pdcore.engine --role decode --instance-id g-1-decode-1 {NATIVE}".split(),
        {},
    ),
]


@pytest.mark.parametrize(
    ("mode", "role", "argv", "env"), ENGINES, ids=[f"{mode} {role}" for mode, role, *_ in ENGINES]
)
def test_an_engine_is_started_as_its_mode_says(
    mode: str, role: str, argv: list[str], env: dict[str, str]
) -> None:
    sizes = ASCEND_SIZES if mode == "vllm-ascend-mooncake" else {}
    made = member(spec(mode, **sizes), role)
    assert made.command == tuple(argv), shlex.join(made.command)
    assert made.environment == env
    assert list(made.environment) == list(env)


@pytest.mark.parametrize(
    ("mode", "bands", "argv"),
    [
        ("vllm-nixl", {}, f"{ROUTER} --protocol nixl {POLICIES} {TOLD}"),
        ("vllm-mooncake", {"bootstrap": 40001}, f"{ROUTER} --protocol mooncake {POLICIES} {TOLD_BOOTSTRAP}"),
        (
            "sglang-mooncake",
            {"bootstrap": 40001},
            f"{ROUTER} --protocol bootstrap {POLICIES} {TOLD_BOOTSTRAP}",
        ),
        ("sglang-nixl", {"bootstrap": 40001}, f"{ROUTER} --protocol bootstrap {POLICIES} {TOLD_BOOTSTRAP}"),
        ("vllm-ascend-mooncake", {}, f"{ROUTER} --protocol nixl {POLICIES} {TOLD}"),
        (
            "pdcore",
            {},
            f"{ROUTER} --router-id g-1-router-1 --store etcd://10.0.0.1:2379 --cluster default {POLICIES}",
        ),
    ],
)
def test_the_router_is_ours(mode: str, bands: dict[str, int], argv: str) -> None:
    told = () if mode == "pdcore" else peers(bands)
    assert shlex.join(member(spec(mode), "router", peers=told).command) == argv


@pytest.mark.parametrize(
    ("mode", "role", "ports"),
    [
        ("vllm-nixl", "prefill", [("http", 1), ("kv_side_channel", 1)]),
        ("vllm-nixl", "decode", [("http", 1), ("kv_side_channel", 1)]),
        ("vllm-mooncake", "prefill", [("http", 1), ("bootstrap", 1)]),
        ("vllm-mooncake", "decode", [("http", 1)]),
        ("sglang-mooncake", "prefill", [("http", 1), ("bootstrap", 1)]),
        ("sglang-nixl", "decode", [("http", 1)]),
        ("vllm-ascend-mooncake", "prefill", [("http", 1), ("kv_port", 8)]),
        ("vllm-ascend-mooncake", "decode", [("http", 1), ("kv_port", 8)]),
        ("vllm-ascend-mooncake", "router", [("http", 1), ("admin", 1)]),
        ("pdcore", "prefill", []),
        ("pdcore", "decode", []),
        ("pdcore", "router", [("http", 1), ("admin", 1)]),
    ],
)
def test_each_member_takes_the_ports_of_its_mode(mode: str, role: str, ports: list[tuple[str, int]]) -> None:
    sizes = ASCEND_SIZES if mode == "vllm-ascend-mooncake" else {}
    made = member(spec(mode, **sizes), role, peers=peers({"bootstrap": 1}))
    assert [(one.name, one.count) for one in made.ports] == ports


def test_a_side_channel_has_a_port_per_data_parallel_rank() -> None:
    made = member(spec("vllm-nixl", prefill={"backend_parameters": ["--data_parallel_size=4"]}), "prefill")
    assert [(one.name, one.base, one.count) for one in made.ports] == [
        ("http", PORT, 1),
        ("kv_side_channel", BASE, 4),
    ]


def test_ascend_needs_the_machines_own_file() -> None:
    made = member(spec("vllm-ascend-mooncake", **ASCEND_SIZES), "decode")
    assert [(one.path, one.content) for one in made.files] == [("/etc/hccn.conf", None)]
    assert "garbage" in made.files[0].why


def test_recompute_reaches_both_connectors() -> None:
    made = spec("vllm-nixl", disaggregation={"kv_load_failure_policy": "recompute"})
    for role in ("prefill", "decode"):
        assert '"kv_load_failure_policy":"recompute"' in member(made, role).command[-1]
