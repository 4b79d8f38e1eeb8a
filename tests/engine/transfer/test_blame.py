"""Nonsense is counted each time and logged once per peer."""

from __future__ import annotations

import pytest
import structlog

from pdcore.engine.transfer.blame import Blame
from pdcore.telemetry import logger

pytestmark = pytest.mark.unit


def test_each_time_counts_and_the_first_of_a_peer_is_logged() -> None:
    with structlog.testing.capture_logs() as lines:
        blame = Blame(logger(__name__), "malformed")
        for peer in ("a", "b", "a", "a"):
            blame(peer, "noise")
    assert blame.malformed == 4
    assert [(line["event"], line["peer"], line["error"]) for line in lines] == [
        ("malformed", "a", "noise"),
        ("malformed", "b", "noise"),
    ]


def test_peers_without_end_are_forgotten_from_the_longest_silent() -> None:
    with structlog.testing.capture_logs() as lines:
        blame = Blame(logger(__name__), "malformed")
        for number in range(1024):
            blame(str(number), "noise")
        blame("0", "again")
        blame("new", "noise")
        blame("0", "still known")
        assert len(lines) == 1025
        blame("1", "forgotten")
        assert len(lines) == 1026
