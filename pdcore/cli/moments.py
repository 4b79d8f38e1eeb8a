"""What a person means with ``--at``: a revision, or a time in one of a few forms. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pdcore.errors import ConfigError
from pdcore.router.revision import HIGHEST_REVISION

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO: Final = re.compile(r"-([0-9]{1,9})([smhd])")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_FORMS: Final = "a revision, an ISO 8601 time, HH:MM[:SS], or how long ago: -90s, -15m, -2h, -1d"


@dataclass(frozen=True, slots=True)
class AtRevision:
    """A position of the store."""

    revision: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Milliseconds since 1970."""

    time_ms: int


def parse_moment(text: str, now: datetime) -> AtRevision | AtTime:
    """What ``text`` means at ``now`` (with its time zone, which holds for times without one).

    Raises :class:`ConfigError` for what has no meaning or lies in the future.
    """
    if text.isascii() and text.isdigit():
        if not 1 <= int(text[:20]) <= HIGHEST_REVISION:
            raise ConfigError(f"--at: a revision is a number from 1 to {HIGHEST_REVISION}, not {text[:32]}")
        return AtRevision(int(text))
    try:
        moment = _moment(text, now)
        time_ms = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as wrong:
        raise ConfigError(f"--at: {text[:64]!r} is not {_FORMS}") from wrong
    if moment > now:
        raise ConfigError(f"--at: {moment.isoformat(timespec='seconds')} lies in the future")
    return AtTime(time_ms)


def _moment(text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text):
        return now - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    if clock := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        today = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return today if today <= now else today - timedelta(days=1)
    given = datetime.fromisoformat(text)
    return given if given.tzinfo is not None else given.replace(tzinfo=now.tzinfo)
