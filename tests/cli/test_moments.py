"""What ``--at`` understands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.cli.moments import AtRevision, AtTime, parse_moment
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit

EAST = timezone(timedelta(hours=2))
NOW = datetime(2026, 11, 30, 14, 30, 15, tzinfo=EAST)


def at(*when: int) -> AtTime:
    return AtTime(round(datetime(*when, tzinfo=EAST).timestamp() * 1000))  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("1", AtRevision(1)),
        ("9223372036854775807", AtRevision((1 << 63) - 1)),
        ("-90s", at(2026, 11, 30, 14, 28, 45)),
        ("-15m", at(2026, 11, 30, 14, 15, 15)),
        ("-2h", at(2026, 11, 30, 12, 30, 15)),
        ("-1d", at(2026, 11, 29, 14, 30, 15)),
        ("14:30", at(2026, 11, 30, 14, 30)),
        ("9:05:07", at(2026, 11, 30, 9, 5, 7)),
        ("23:00", at(2026, 11, 29, 23, 0)),
        ("2026-11-30T14:00", at(2026, 11, 30, 14, 0)),
        ("2026-11-30 14:00:01", at(2026, 11, 30, 14, 0, 1)),
        ("2026-11-30T12:00:00Z", at(2026, 11, 30, 14, 0)),
        ("2026-11-29", at(2026, 11, 29)),
    ],
)
def test_a_revision_or_a_time(text: str, means: AtRevision | AtTime) -> None:
    assert parse_moment(text, NOW) == means


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "99999999999999999999",
        "yesterday",
        "-15",
        "-1w",
        "25:00",
        "12:60",
        "2026-13-01",
        "-999999999d",
    ],
)
def test_what_has_no_meaning_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="--at: "):
        parse_moment(text, NOW)


@pytest.mark.parametrize("text", ["2026-11-30T14:31", "2027-01-01"])
def test_the_future_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="lies in the future"):
        parse_moment(text, NOW)


@given(st.text(max_size=12))
@settings(deadline=None, max_examples=200)
def test_any_text_is_a_moment_or_refused(text: str) -> None:
    try:
        parse_moment(text, datetime.now(UTC))
    except ConfigError:
        pass
