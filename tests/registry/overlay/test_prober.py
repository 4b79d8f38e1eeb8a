"""What an answer to a probe counts as."""

from __future__ import annotations

import pytest

from pdcore.registry.overlay.prober import judge
from pdcore.registry.overlay.suspect import Outcome
from pdcore.registry.probe import UNNAMED, Health

pytestmark = pytest.mark.unit

MADE_UP = f"{UNNAMED}1"


@pytest.mark.parametrize(
    ("expected", "health", "outcome"),
    [
        ("i1", Health(200, "i1"), "answered"),
        ("i1", Health(503, "i1"), "failed"),
        ("i1", Health(200, "i2"), "other"),
        ("i1", Health(200, None), "other"),
        ("i1", Health(503, None), "silent"),
        (MADE_UP, Health(200, None), "answered"),
        (MADE_UP, Health(404, None), "answered"),
        (MADE_UP, Health(503, None), "failed"),
        (MADE_UP, Health(200, "i2"), "other"),
    ],
)
def test_who_names_no_incarnation_is_believed_only_where_none_is_expected(
    expected: str, health: Health, outcome: Outcome
) -> None:
    assert judge(health, expected) == outcome
