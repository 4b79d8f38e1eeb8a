"""Every code that a finding can have, and the rule of the reference platform it stands for. Data.

Codes are part of the interface: programs read them, so they are added and never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, str]] = {
    # the file itself
    "file_unreadable": "",
    "unknown_key": "",
    "missing_key": "",
    "wrong_value": "",
    "out_of_range": "R3",
    "engine_unsupported": "R11",
    # structure
    "roles_missing": "R1",
    "role_duplicate": "R2",
    "role_unknown": "R2",
    "resources_on_engine_role": "R4",
    "resources_not_positive": "R4",
    "lora_on_role": "R5",
    "dependency_unknown": "R6",
    "dependency_self": "R6",
    "dependency_cycle": "R6",
    "role_missing": "R9",
    "router_missing": "R9",
    "lora_with_disaggregation": "R10",
    "cache_in_custom_mode": "R12",
    "load_failure_policy_unsupported": "R13",
    "router_peer_flag": "R14",
    "router_address_flag": "",
    "router_owned_flag": "",
    "router_flag_unknown": "",
    "router_flag_refused": "",
    "protocol_not_custom": "",
    "custom_router_undecided": "",
    "custom_router_twice": "",
    "backend_not_in_mode": "R15",
    "command_missing": "",
    "command_not_native": "",
    "parameter_stray": "",
    "placeholder_unresolved": "",
    "vendor_not_in_mode": "R16",
    "vendor_not_in_cluster": "R16",
    "kv_transfer_config_invalid": "R18",
    "cache_services_differ": "R19",
    "cache_incomplete": "R20",
    "cache_local_with_service": "R20",
    "cache_not_in_mode": "R20",
    "cache_kind_unsupported": "R20",
    "cache_provider_unsupported": "R20",
    "cache_role_unsupported": "R20",
    "cache_engine_version": "",
    # the pair
    "pairing_context_length": "6.2",
    "pairing_tp": "6.2",
    "pairing_dtype": "6.2",
    "pairing_kv_dtype": "6.2",
    "pairing_block_size": "6.2",
    "pairing_kv_layout": "6.2",
    "pairing_hybrid_kv_cache": "6.2",
    "pairing_mla": "6.3",
    "pairing_ssm_layout": "6.3",
    "pairing_attention_backend": "6.3",
    "pairing_unverified": "6.3",
    "ascend_dp_without_experts": "",
    "ascend_dp_unverified": "",
    "band_exceeds_range": "",
    "port_range_invalid": "",
    # pdcore's own engines
    "pairing_cp": "",
    "pairing_transfer_engine": "",
    "engine_flag_unknown": "",
    "engine_flag_owned": "",
    "engine_flag_refused": "",
    "variable_refused": "",
    "context_too_long": "",
    "tp_does_not_divide": "",
    "model_missing": "",
    "model_unreadable": "",
    # accelerators and advice
    "mixed_accelerators": "",
    "engine_version_below_recipe_floor": "",
    "pd_may_not_help": "",
}
"""Codes by the rule they stand for; an empty one is ours."""

NOT_APPLICABLE: Final[Mapping[str, str]] = {
    "R7": "a group has no replicas of its own to be 0 or 1; it is ended by deleting it",
    "R8": "nothing scales by a schedule here",
    "R17": "members are placed by Kubernetes or on one machine, so there is no layer to gather in",
    "R20 (tenancy)": "a shared cache is an address in the spec, so there is no service of another organisation to see",
}
"""Rules with nothing here to judge, and why."""


def rule_of(code: str) -> str | None:
    """The rule that ``code`` stands for."""
    return CODES.get(code) or None
