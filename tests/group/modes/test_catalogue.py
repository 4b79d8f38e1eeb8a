"""The modes of this release, row by row."""

from __future__ import annotations

import pytest

from pdcore.group.modes.catalogue import catalogue

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    (
        "name",
        "backends",
        "vendors",
        "preferred",
        "versions",
        "membership",
        "protocol",
        "plane",
        "lease",
        "counted",
    ),
    [
        (
            "pdcore",
            "pdcore",
            "cpu ascend",
            True,
            None,
            "keyspace",
            "same_dispatch",
            None,
            "pdcore",
            "prefill",
        ),
        ("vllm-nixl", "vllm", "nvidia", True, ">=0.27.1", "dynamic", "two_hop", "data", "nixl", "decode"),
        (
            "vllm-mooncake",
            "vllm",
            "nvidia",
            False,
            ">=0.27.1",
            "dynamic",
            "same_dispatch",
            "data",
            "mooncake",
            "prefill",
        ),
        *(
            (
                *(
                    f"sglang-{name}",
                    "sglang",
                    "nvidia",
                    preferred,
                    ">=0.5.7",
                    "dynamic",
                    "same_dispatch",
                    "data",
                ),
                *(f"sglang-{name}", "decode"),
            )
            for name, preferred in (("mooncake", True), ("nixl", False))
        ),
        (
            *("vllm-ascend-mooncake", "vllm", "ascend", True, ">=0.23.0", "dynamic", "two_hop", "control"),
            *("ascend-mooncake", "decode"),
        ),
        (
            "custom",
            "pdcore vllm sglang custom",
            "",
            False,
            None,
            "dynamic",
            "user_provided",
            None,
            None,
            None,
        ),
    ],
)
def test_each_mode_is_what_its_row_says(
    name: str,
    backends: str,
    vendors: str,
    preferred: bool,
    versions: str | None,
    membership: str,
    protocol: str,
    plane: str | None,
    lease: str | None,
    counted: str | None,
) -> None:
    mode = catalogue().mode(name)
    assert (mode.backends, mode.vendors) == (tuple(backends.split()), tuple(vendors.split()))
    assert (mode.preferred, mode.engine_versions) == (preferred, versions)
    assert (mode.membership, mode.protocol, mode.nic_plane) == (membership, protocol, plane)
    metrics = catalogue().metrics_of(mode)
    assert (mode.lease, None if metrics is None else metrics.counted_role) == (lease, counted)


@pytest.mark.parametrize(
    ("connector", "parameter", "where", "engine_s", "platform_s", "expired"),
    [
        ("nixl", "kv_lease_duration", "extra_config", 30, 60, "vllm:nixl_num_kv_expired_reqs"),
        (
            *("mooncake", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "env", 480, 60),
            "vllm:mooncake_num_kv_expired_reqs",
        ),
        ("ascend-mooncake", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "env", 480, 60, None),
        ("sglang-mooncake", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "env", 300, None, None),
        ("sglang-nixl", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "env", 300, None, None),
        ("moriio", "defer_timeout", "extra_config", 60, None, None),
        ("pdcore", None, "none", None, None, None),
    ],
)
def test_each_connector_keeps_kv_as_its_row_says(
    connector: str,
    parameter: str | None,
    where: str,
    engine_s: int | None,
    platform_s: int | None,
    expired: str | None,
) -> None:
    lease = catalogue().leases[connector]
    assert (lease.parameter, lease.where, lease.engine_default_s) == (parameter, where, engine_s)
    assert (lease.platform_default_s, lease.expired_metric) == (platform_s, expired)


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("pdcore", False),
        ("vllm-nixl", True),
        ("vllm-mooncake", True),
        ("sglang-mooncake", False),
        ("sglang-nixl", False),
        ("vllm-ascend-mooncake", False),
        ("custom", False),
    ],
)
def test_only_connectors_that_know_the_policy_take_it(name: str, takes: bool) -> None:
    assert catalogue().mode(name).takes_load_failure_policy is takes


def test_a_mode_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        catalogue().mode("other")
