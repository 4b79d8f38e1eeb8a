from __future__ import annotations

import pytest

from pdcore.router.pace import Pace

pytestmark = pytest.mark.unit


def test_the_first_event_and_the_mean_time_between_events() -> None:
    pace = Pace()
    assert (pace.first_after_s(1.0), pace.between_s()) == (None, None)
    pace.events(1, 1.5)
    assert (pace.first_after_s(1.0), pace.between_s()) == (0.5, None)
    pace.events(0, 1.55)
    pace.events(1, 1.6)
    pace.events(1, 2.5)
    assert (pace.first_after_s(1.0), pace.between_s(), pace.count) == (0.5, 0.5, 3)
