"""A role that replaces the group's flags or variables loses the rest of them, and a finding that follows says so."""

from __future__ import annotations

import pytest

from tests.group.specs import LLAMA, Document, group, judge

pytestmark = pytest.mark.unit


def lost(document: Document) -> list[str]:
    """What the findings say was replaced."""
    found = judge(document, model=LLAMA)
    return [one.message.partition("; ")[2] for one in found if "replace the group's" in one.message]


@pytest.mark.parametrize("mode", ["pdcore", "vllm-nixl"])
@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--max-model-len=1024", "--max-model-len=1024 too"),
        ("--block-size=32", "--block-size=32 too"),
    ],
)
def test_a_flag_that_an_own_list_dropped_is_named(mode: str, flag: str, says: str) -> None:
    told = lost(group(mode, backend_parameters=[flag], decode={"backend_parameters": []}))
    assert told
    assert all(
        one == f"decode's own backend_parameters replace the group's as a whole, {says}"
        or one.endswith(f"; decode's own backend_parameters replace the group's as a whole, {says}")
        for one in told
    )


def test_a_variable_that_an_own_mapping_dropped_is_named() -> None:
    document = group("vllm-nixl", env={"VLLM_KV_CACHE_LAYOUT": "HND"}, decode={"env": {}})
    (only,) = lost(document)
    assert only.endswith("decode's own env replace the group's as a whole, VLLM_KV_CACHE_LAYOUT=HND too")


def test_what_both_wrote_themselves_was_not_dropped() -> None:
    document = group(
        "pdcore",
        backend_parameters=["--max-model-len=64"],
        prefill={"backend_parameters": ["--max-model-len=1024"]},
        decode={"backend_parameters": ["--max-model-len=2048"]},
    )
    assert lost(document) == []
    assert [one.code for one in judge(document, model=LLAMA)] == ["pairing_context_length"]
