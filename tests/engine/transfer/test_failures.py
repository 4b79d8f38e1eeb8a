"""Two families of failures, each failure in one of them."""

from __future__ import annotations

from typing import get_args

import pytest

from pdcore.engine.transfer.failures import (
    FailureCounts,
    Path,
    Reason,
    RequestReason,
    TransferReason,
    given_up,
)
from pdcore.errors import ErrorCode

pytestmark = pytest.mark.unit

REASONS: list[Reason] = [*get_args(RequestReason), *get_args(TransferReason)]


@pytest.mark.parametrize("reason", REASONS)
def test_a_failure_counts_once_in_one_family(reason: Reason) -> None:
    counts = FailureCounts()
    counts.add(reason, "shm", "p rank 0.0.0")
    seen = counts.statistics()
    if reason in get_args(RequestReason):
        assert (seen.request, seen.transfer) == ({reason: 1}, {})
    else:
        assert (seen.request, seen.transfer) == ({}, {Path("shm", "p rank 0.0.0", reason): 1})


def test_no_reason_is_in_both_families() -> None:
    assert len(set(REASONS)) == len(REASONS)


def test_a_thousand_peers_leave_bounded_counts_and_every_failure_counted() -> None:
    counts = FailureCounts()
    for turn in range(1000):
        counts.add("gone", "tcp", f"p{turn} rank 0.0.0")
    counts.add("gone", "tcp", "p3 rank 0.0.0")
    seen = counts.statistics().transfer
    assert len(seen) <= 260
    assert sum(seen.values()) == 1001
    assert seen[Path("tcp", "p3 rank 0.0.0", "gone")] == 2


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_whoever_gives_a_request_up_blames_no_transfer(code: ErrorCode) -> None:
    assert given_up(code) in get_args(RequestReason)
