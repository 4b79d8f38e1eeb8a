"""A KV cache beside each mode's own transport: what is composed, what is refused, what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdcore.group.modes.mode import EngineRole
from pdcore.group.modes.shared_cache import Attachment, Refused, attachment, composed, shared_caches
from pdcore.group.modes.versions import floor_of
from pdcore.group.render.rendered import Rendered
from pdcore.group.spec import MODES, ExtendedKvCache, ModeName
from tests.group.render.rendering import member, spec

pytestmark = pytest.mark.unit

LOCAL = {"kind": "local", "size": "20Gi"}
SIZES = ["--tensor-parallel-size=2"]


def shared(provider: str, **options: Any) -> dict[str, Any]:
    said = {"kind": "shared", "provider": provider, "service": "10.1.1.1:6555"}
    return said | ({"options": options} if options else {})


def rendered(mode: str, role: str, cache: dict[str, Any], **more: Any) -> Rendered:
    sizes = {"backend_parameters": SIZES} if mode.startswith("vllm-ascend") else {}
    said = {"extended_kv_cache": cache, **sizes, **more}
    made = spec(mode, **{role: said}, **({_other(role): sizes} if sizes else {}))
    return member(made, role)


def _other(role: str) -> str:
    return "decode" if role == "prefill" else "prefill"


def descriptor(made: Rendered) -> dict[str, Any]:
    """The one --kv-transfer-config."""
    command = list(made.command)
    assert command.count("--kv-transfer-config") == 1
    found = json.loads(command[command.index("--kv-transfer-config") + 1])
    assert isinstance(found, dict)
    return found


NIXL_P = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_producer",
    "kv_load_failure_policy": "fail",
    "kv_connector_extra_config": {"kv_lease_duration": 60},
}
NIXL_D = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_load_failure_policy": "fail"}
MOONCAKE_P = NIXL_P | {"kv_connector": "MooncakeConnector"}
del MOONCAKE_P["kv_connector_extra_config"]
MOONCAKE_D = NIXL_D | {"kv_connector": "MooncakeConnector"}
LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
LMCACHE_MP = {
    "kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"lmcache.mp.host": "10.1.1.1", "lmcache.mp.port": 6555},
}
OFFLOAD = {
    "kv_connector": "SimpleCPUOffloadConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use_per_rank": 10 << 30},
}


@pytest.mark.parametrize(
    ("mode", "role", "cache", "pd", "store"),
    [
        ("vllm-nixl", "prefill", LOCAL, NIXL_P, LMCACHE),
        ("vllm-nixl", "decode", LOCAL, NIXL_D, LMCACHE),
        ("vllm-nixl", "prefill", shared("lmcache"), NIXL_P, LMCACHE_MP),
        ("vllm-mooncake", "prefill", LOCAL, MOONCAKE_P, LMCACHE),
        ("vllm-mooncake", "decode", LOCAL, MOONCAKE_D, LMCACHE),
        (
            "vllm-mooncake",
            "prefill",
            shared("mooncake"),
            MOONCAKE_P,
            {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"},
        ),
        (
            "vllm-mooncake",
            "decode",
            shared("mooncake"),
            MOONCAKE_D,
            {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_consumer"},
        ),
        ("vllm-ascend-mooncake", "prefill", LOCAL, None, OFFLOAD),
        ("vllm-ascend-mooncake", "decode", LOCAL, None, OFFLOAD),
        (
            "vllm-ascend-mooncake",
            "prefill",
            shared("mooncake"),
            None,
            {"kv_connector": "AscendStoreConnector", "kv_role": "kv_producer"},
        ),
        (
            "vllm-ascend-mooncake",
            "decode",
            shared("mooncake"),
            None,
            {"kv_connector": "AscendStoreConnector", "kv_role": "kv_consumer"},
        ),
    ],
)
def test_vllm_gets_one_connector_of_both_the_pd_connector_first(
    mode: str, role: str, cache: dict[str, Any], pd: dict[str, Any] | None, store: dict[str, Any]
) -> None:
    found = descriptor(rendered(mode, role, cache))
    first, second = found["kv_connector_extra_config"]["connectors"]
    assert found["kv_connector"] == "MultiConnector"
    assert found["kv_role"] == {"prefill": "kv_producer", "decode": "kv_consumer"}[role]
    if pd is not None:
        assert first == pd
    else:
        assert first == descriptor(rendered(mode, role, {}))
    assert second == store
    assert found.get("kv_load_failure_policy") == first.get("kv_load_failure_policy")


@pytest.mark.parametrize("mode", ["sglang-mooncake", "sglang-nixl"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("provider", "url"), [("lmcache", "lm://10.1.1.1:6555"), ("meshfusion", "10.1.1.1:6555")]
)
def test_sglang_gets_flags_and_a_file(mode: str, role: str, provider: str, url: str) -> None:
    made = rendered(mode, role, shared(provider, chunk_size=256))
    assert made.command[-3:] == ("--enable-lmcache", "--lmcache-config-file", "/run/g/lmcache.yaml")
    assert "--kv-transfer-config" not in made.command
    (file,) = made.files
    assert file.path == "/run/g/lmcache.yaml"
    assert file.content is not None
    assert json.loads(file.content) == {"remote_url": url, "chunk_size": 256}


@pytest.mark.parametrize(
    ("cache", "flags"),
    [
        (LOCAL, ("--enable-hierarchical-cache", "--hicache-size=20")),
        ({"kind": "local", "ratio": 2.0}, ("--enable-hierarchical-cache", "--hicache-ratio=2")),
        ({"kind": "local"}, ("--enable-hierarchical-cache",)),
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_sglangs_local_cache_is_flags(role: str, cache: dict[str, Any], flags: tuple[str, ...]) -> None:
    made = rendered("sglang-mooncake", role, cache)
    assert made.command[-len(flags) :] == flags


@pytest.mark.parametrize(
    ("mode", "role", "cache", "code"),
    [
        ("vllm-nixl", "decode", shared("lmcache"), "cache_role_unsupported"),
        ("vllm-nixl", "prefill", shared("mooncake"), "cache_provider_unsupported"),
        ("vllm-nixl", "prefill", shared("meshfusion"), "cache_provider_unsupported"),
        ("vllm-mooncake", "prefill", shared("lmcache"), "cache_provider_unsupported"),
        ("vllm-ascend-mooncake", "decode", shared("lmcache"), "cache_provider_unsupported"),
        ("sglang-nixl", "decode", shared("mooncake"), "cache_provider_unsupported"),
        ("custom", "prefill", LOCAL, "cache_not_in_mode"),
        ("custom", "decode", shared("lmcache"), "cache_not_in_mode"),
        ("pdcore", "prefill", LOCAL, "cache_not_in_mode"),
    ],
)
def test_what_is_not_in_the_table_is_refused(
    mode: ModeName, role: EngineRole, cache: dict[str, Any], code: str
) -> None:
    found = attachment(mode, role, ExtendedKvCache(**cache))
    assert isinstance(found, Refused)
    assert found.code == code
    assert [note.code for note in rendered(mode, role, cache).notes] == ["cache_not_injected"]


def test_a_shared_lmcache_at_decode_says_why_not() -> None:
    found = attachment("vllm-nixl", "decode", ExtendedKvCache(**shared("lmcache")))
    assert isinstance(found, Refused)
    assert "53049" in found.message


def test_lmcache_brings_what_its_keys_and_its_end_need() -> None:
    for cache in (LOCAL, shared("lmcache")):
        made = rendered("vllm-nixl", "prefill", cache)
        assert made.environment["PYTHONHASHSEED"] == "0"
        assert made.command[-2:] == ("--shutdown-timeout", "20")
    assert rendered("vllm-nixl", "decode", LOCAL).environment["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "20"


def test_a_local_cache_of_no_size_leaves_it_to_the_connector() -> None:
    nixl = rendered("vllm-nixl", "decode", {"kind": "local"})
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE" not in nixl.environment
    ascend = descriptor(rendered("vllm-ascend-mooncake", "decode", {"kind": "local"}))
    store = ascend["kv_connector_extra_config"]["connectors"][1]
    assert store == {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"}


def test_options_go_where_the_connector_reads_them() -> None:
    made = descriptor(
        rendered("vllm-nixl", "prefill", shared("lmcache", **{"lmcache.mp.mp_transfer_mode": "x"}))
    )
    store = made["kv_connector_extra_config"]["connectors"][1]
    assert store["kv_connector_extra_config"]["lmcache.mp.mp_transfer_mode"] == "x"
    file = rendered("vllm-mooncake", "decode", shared("mooncake", global_segment_size="1GB")).files[-1]
    assert json.loads(file.content or "") == {
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "rdma",
        "device_name": "",
        "master_server_address": "10.1.1.1:6555",
        "global_segment_size": "1GB",
    }


def test_options_of_a_local_cache_reach_the_connector_or_the_engine() -> None:
    cache = {"kind": "local", "options": {"lmcache.chunk_size": 256}}
    store = descriptor(rendered("vllm-nixl", "decode", cache))["kv_connector_extra_config"]["connectors"][1]
    assert store["kv_connector_extra_config"] == {"lmcache.chunk_size": 256}
    flags = {"kind": "local", "options": {"hicache_io_backend": "kernel", "hicache-write-back": True}}
    made = rendered("sglang-nixl", "prefill", flags)
    assert made.command[-3:] == (
        "--enable-hierarchical-cache",
        "--hicache-io-backend=kernel",
        "--hicache-write-back",
    )


def test_a_service_without_a_port_is_not_started_with() -> None:
    made = rendered("vllm-nixl", "prefill", {"kind": "shared", "provider": "lmcache", "service": "cache"})
    assert any("{{cache.host}}" in str(problem) for problem in made.problems)


@pytest.mark.parametrize("spelling", ["--kv-transfer-config", "--kv_transfer_config"])
def test_a_users_own_connector_stands_alone(spelling: str) -> None:
    own = '{"kv_connector":"Mine"}'
    made = rendered("vllm-nixl", "prefill", LOCAL, backend_parameters=[spelling, own])
    assert made.command[-2:] == (spelling, own)
    assert "--kv-transfer-config" not in made.command[:-2]
    assert made.environment["UCX_NET_DEVICES"] == "eth1"
    assert {note.code for note in made.notes} == {"descriptor_is_users", "cache_not_injected"}
    assert "PYTHONHASHSEED" not in made.environment


def test_the_policy_is_lifted_only_where_there_is_one() -> None:
    assert composed({"kv_connector": "A"}, {"kv_connector": "B"}, "decode") == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "A"}, {"kv_connector": "B"}]},
    }


def test_the_table_names_modes_that_are_there_and_ranges_that_can_be_read() -> None:
    table = shared_caches()
    assert set(table) == set(MODES) - {"pdcore", "custom"}
    for caches in table.values():
        found: list[Attachment] = [*caches.services.values(), *([caches.local] if caches.local else [])]
        assert all(floor_of(one.versions) for one in found if one.versions is not None)
        assert all(set(one.roles) == {"prefill", "decode"} for one in found)


@pytest.mark.parametrize(
    ("mode", "local", "shared_versions"),
    [
        ("vllm-nixl", ">=0.26.0", ">=0.26.0"),
        ("vllm-mooncake", ">=0.26.0", ">=0.29.0"),
        ("vllm-ascend-mooncake", ">=0.23.0", ">=0.23.0"),
        ("sglang-mooncake", None, None),
    ],
)
def test_ranges_are_those_that_were_tried(mode: Any, local: str | None, shared_versions: str | None) -> None:
    caches = shared_caches()[mode]
    assert caches.local is not None
    assert caches.local.versions == local
    assert {one.versions for one in caches.services.values()} == {shared_versions}
