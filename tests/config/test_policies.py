"""How policies are written in settings."""

from __future__ import annotations

import pytest

from pdcore.config.policies import PolicyNames, policy_names

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("random", PolicyNames(usual="random")),
        ("org/m:7b=random", PolicyNames(by_model={"org/m:7b": "random"})),
        (
            "a=random, round_robin,b=cache_aware",
            PolicyNames(usual="round_robin", by_model={"a": "random", "b": "cache_aware"}),
        ),
        ("odd=name=random", PolicyNames(by_model={"odd=name": "random"})),
    ],
)
def test_a_policy_is_named_for_all_and_for_single_models(text: str, expected: PolicyNames) -> None:
    assert policy_names(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("round-robin", "did you mean 'round_robin'"),
        ("", "is no policy"),
        ("a=", "is no policy"),
        ("random,random", "all other models"),
        ("a=random,a=room_hash", "twice what holds for a"),
        ("=random", "names no model"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_there_is(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        policy_names(text)
