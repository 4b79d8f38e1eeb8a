"""Whose policy it is: the model's before the role's, the role's before everybody's, and then the usual ones."""

from __future__ import annotations

import pytest

from pdcore.config.policies import policy_names
from pdcore.router.policies.selection import USUAL, Selection

pytestmark = pytest.mark.unit


def names(selection: Selection, model: str = "any") -> tuple[str, str]:
    found = selection.of(model)
    return found.prefill.name, found.decode.name


def selected(both: str | None = None, prefill: str | None = None, decode: str | None = None) -> Selection:
    return Selection(*(None if text is None else policy_names(text) for text in (both, prefill, decode)))


def test_prefixes_decide_about_prefill_and_turns_about_decode_unless_somebody_says_otherwise() -> None:
    assert names(USUAL) == ("prefix_affinity", "round_robin")
    assert USUAL.of("any").reads_prompts


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (selected("random"), ("random", "random")),
        (selected("random", decode="least_loaded"), ("random", "least_loaded")),
        (selected(prefill="cache_aware"), ("prefix_affinity", "round_robin")),
        (selected("random,m=room_hash", "least_loaded"), ("room_hash", "room_hash")),
        (selected("m=room_hash", "m=random", "power_of_two"), ("random", "room_hash")),
        (selected("n=room_hash"), ("prefix_affinity", "round_robin")),
    ],
)
def test_who_decides(selection: Selection, expected: tuple[str, str]) -> None:
    assert names(selection, "m") == expected


def test_prompts_are_read_only_where_a_policy_goes_by_them() -> None:
    selection = selected("round_robin,m=prefix_affinity")
    assert selection.of("m").reads_prompts
    assert not selection.of("other").reads_prompts
