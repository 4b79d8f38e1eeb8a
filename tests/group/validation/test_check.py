"""Checking is total: whatever a file says, the outcome is a list of findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdcore.group.finding import SpecRefused
from pdcore.group.kinds import declared
from pdcore.group.spec import MODES, ROLES, RoleSpec, spec_of
from pdcore.group.validation.check import accepted, check
from tests.group.specs import LLAMA, group, judge

pytestmark = pytest.mark.unit

FLAGS = [
    *(
        "--tp",
        "--tp=4",
        "--dp=2",
        "--pp=2",
        "--max-model-len=128k",
        "--max-model-len",
        "x",
        "--kv-transfer-config={}",
    ),
    *(
        "--kv-transfer-config=[",
        '--hf-overrides={"kv_lora_rank": 4}',
        "--block-size=0",
        "--port=1",
        "--prefill=a",
    ),
    *("--no-disable-hybrid-kv-cache-manager", "--attention-backend=X", "{{ports.x}}", "", "-", "--"),
]
VARIABLES = [
    "VLLM_KV_CACHE_LAYOUT",
    "VLLM_MLA_DISABLE",
    "VLLM_SSM_CONV_STATE_LAYOUT",
    "PDCORE_TP",
    "PDCORE_PORT",
]

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 600),
    st.sampled_from(["", "x", "vllm", "sglang", "nixl", "0.27.1", "40000-40001"]),
    st.lists(st.sampled_from(FLAGS), max_size=5),
    st.dictionaries(
        st.sampled_from(VARIABLES), st.sampled_from(["NHD", "HND", "1", "DS", "SD", "4"]), max_size=3
    ),
    st.fixed_dictionaries(
        {}, optional={"kind": st.sampled_from(["local", "shared"]), "provider": st.just("lmcache")}
    ),
    st.lists(st.sampled_from(ROLES), max_size=2),
)
fields = st.dictionaries(
    st.sampled_from([one.name for one in declared(RoleSpec)] + ["wat"]), values, max_size=4
)
roles = st.lists(
    fields.flatmap(lambda held: st.builds(lambda name: held | {"name": name}, st.sampled_from(ROLES)))
)
documents = st.builds(
    lambda mode, shared, some: {
        **shared,
        "name": "g",
        "model": "m",
        "disaggregation": {"mode": mode},
        "roles": some,
    },
    st.sampled_from(MODES),
    fields.map(
        lambda held: {key: value for key, value in held.items() if key not in ("name", "dependencies")}
    ),
    roles,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents, st.sampled_from([None, LLAMA]))
def test_any_document_ends_in_findings(document: dict[str, Any], model: Any) -> None:
    try:
        found = judge(document, model=model)
    except SpecRefused as refused:
        found = refused.findings
    assert all(one.code and one.message and one.remedy for one in found)
    assert json.dumps([one.document() for one in found])


def test_a_native_model_must_be_there_and_another_may_be_elsewhere(tmp_path: Path) -> None:
    native = check(spec_of(group("pdcore", model=str(tmp_path))))
    assert [(one.code, one.severity, one.path) for one in native] == [("model_missing", "refused", "model")]
    other = check(spec_of(group("vllm-nixl", model=str(tmp_path))))
    assert [(one.code, one.severity) for one in other] == [("model_unreadable", "advisory")]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert check(spec_of(group("pdcore", model=str(tmp_path)))) == ()


def test_refusals_come_before_advice_and_only_they_refuse() -> None:
    document = group(prefill={"replicas": 1}, lora_list=["a"])
    assert [one.severity for one in check(spec_of(document))] == ["refused", "advisory"]
    with pytest.raises(SpecRefused) as wrong:
        accepted(spec_of(document))
    assert [one.code for one in wrong.value.findings] == ["lora_with_disaggregation"]
    (advice,) = accepted(spec_of(group(prefill={"replicas": 1})))
    assert advice.code == "pd_may_not_help"
