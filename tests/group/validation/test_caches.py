"""Which KV cache may be attached where: R12, R19 and R20, and the table of compositions."""

from __future__ import annotations

from typing import Any

import pytest

from pdcore.group.finding import Finding
from tests.group import specs
from tests.group.specs import Document, group

pytestmark = pytest.mark.unit

# What a cache does to the layers that vLLM's hybrid cache manager sees is unknown, which is advice of its own.
EXPECTED_ADVICE = "pairing_unverified"


def judge(document: Document) -> list[Finding]:
    return [one for one in specs.judge(document) if one.code != EXPECTED_ADVICE]


def codes(document: Document) -> list[str]:
    return [one.code for one in judge(document)]


LOCAL: dict[str, Any] = {"kind": "local", "size": "20Gi"}


def shared(provider: str | None, service: str | None = "cache:5555") -> dict[str, Any]:
    return {"kind": "shared", "provider": provider, "service": service}


COMPOSITIONS = [
    ("vllm-nixl", LOCAL, LOCAL, []),
    ("vllm-nixl", shared("lmcache"), None, []),
    ("vllm-nixl", shared("lmcache"), shared("lmcache"), ["cache_role_unsupported"]),
    ("vllm-nixl", None, shared("lmcache"), ["cache_role_unsupported"]),
    ("vllm-nixl", shared("mooncake"), None, ["cache_provider_unsupported"]),
    ("vllm-mooncake", LOCAL, LOCAL, []),
    ("vllm-mooncake", shared("mooncake"), shared("mooncake"), []),
    ("vllm-mooncake", shared("lmcache"), None, ["cache_provider_unsupported"]),
    ("vllm-ascend-mooncake", LOCAL, LOCAL, []),
    ("vllm-ascend-mooncake", shared("mooncake"), shared("mooncake"), []),
    ("vllm-ascend-mooncake", shared("meshfusion"), None, ["cache_provider_unsupported"]),
    ("sglang-mooncake", LOCAL, None, []),
    ("sglang-mooncake", shared("lmcache"), shared("lmcache"), []),
    ("sglang-nixl", shared("meshfusion"), shared("meshfusion"), []),
    ("sglang-nixl", shared("mooncake"), None, ["cache_provider_unsupported"]),
    ("custom", LOCAL, None, ["cache_in_custom_mode"]),
    ("custom", shared("lmcache"), shared("lmcache"), ["cache_in_custom_mode"] * 2),
    ("pdcore", LOCAL, None, ["cache_not_in_mode"]),
    ("pdcore", shared("lmcache"), None, ["cache_not_in_mode"]),
]


@pytest.mark.parametrize(("mode", "prefill", "decode", "expected"), COMPOSITIONS)
def test_a_composition(mode: str, prefill: Any, decode: Any, expected: list[str]) -> None:
    document = group(mode, prefill={"extended_kv_cache": prefill}, decode={"extended_kv_cache": decode})
    assert codes(document) == expected


@pytest.mark.parametrize(
    ("cache", "code", "path"),
    [
        ({"kind": "shared", "provider": "lmcache"}, "cache_incomplete", "service"),
        ({"kind": "shared", "service": "c:1"}, "cache_incomplete", "provider"),
        ({"size": "1Gi"}, "cache_incomplete", "kind"),
        ({"kind": "local", "size": "much"}, "cache_incomplete", "size"),
        ({"kind": "local", "service": "c:1"}, "cache_local_with_service", "service"),
        ({"kind": "local", "provider": "lmcache"}, "cache_local_with_service", "provider"),
    ],
)
def test_a_cache_that_is_half_described_is_refused(cache: dict[str, Any], code: str, path: str) -> None:
    (only,) = judge(group(prefill={"extended_kv_cache": cache}))
    assert (only.code, only.path) == (code, f"roles.prefill.extended_kv_cache.{path}")


def test_r19_two_roles_share_one_service() -> None:
    document = group(
        "vllm-mooncake",
        prefill={"extended_kv_cache": shared("mooncake", "a:1")},
        decode={"extended_kv_cache": shared("mooncake", "b:1")},
    )
    (only,) = judge(document)
    assert only.code == "cache_services_differ"
    assert only.values == {"prefill": "mooncake a:1", "decode": "mooncake b:1"}


def test_an_empty_cache_replaces_the_groups_and_null_does_not() -> None:
    assert codes(group(extended_kv_cache=shared("lmcache"), decode={"extended_kv_cache": {}})) == []
    assert codes(group(extended_kv_cache=shared("lmcache"), decode={"extended_kv_cache": None})) == [
        "cache_role_unsupported"
    ]


@pytest.mark.parametrize(
    ("version", "image", "expected"),
    [
        ("0.25.0", None, ["cache_engine_version", "engine_version_below_recipe_floor"]),
        ("0.25.0+mine", None, []),
        ("0.25.0", "my/image", []),
        ("0.27.1", None, []),
    ],
)
def test_versions_of_engines_are_advice(version: str, image: str | None, expected: list[str]) -> None:
    document = group(prefill={"extended_kv_cache": LOCAL, "backend_version": version, "image_name": image})
    found = judge(document)
    assert [one.code for one in found] == expected
    assert all(one.severity == "advisory" for one in found)
