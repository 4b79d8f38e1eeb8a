"""A router's memory of its own views."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import StoreError
from pdcore.registry.ring import Ring, read_remembered, remembered
from pdcore.topology.topology import Stored, Topology, build

pytestmark = pytest.mark.unit


def view(revision: int) -> Topology:
    keys = {"routers/r": Stored(b"%d" % revision, revision), "foreign": Stored(b"\xff", 1)}
    return build(keys, revision)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=30), st.integers(0, 40_000))
@settings(deadline=None)
def test_it_knows_the_view_at_every_time_of_the_last_ten_seconds(pauses: list[int], asked: int) -> None:
    ring, now, seen = Ring(keep_s=10), 0, {}
    for revision, pause in enumerate(pauses, start=1):
        now += pause
        ring.note(view(revision), now)
        seen[now] = revision
    expected = max((at for at in seen if at <= asked), default=None)
    moment = ring.at(asked)
    if asked >= max(now - 10_000, min(seen)):
        assert moment is not None
        assert expected is not None
        assert (moment.time_ms, moment.topology.revision) == (expected, seen[expected])
    elif moment is not None:
        assert moment.time_ms == expected
    assert ring.oldest_ms is not None
    assert ring.oldest_ms <= max(now - 10_000, min(seen))


def test_it_is_bounded() -> None:
    ring = Ring(most=3)
    for revision in range(1, 10):
        ring.note(view(revision), revision)
    assert ring.oldest_ms == 7
    assert ring.at(6) is None


def test_what_readers_made_of_a_view_is_not_held() -> None:
    ring, read = Ring(), view(1)
    assert read.by_role("prefill") == ()
    ring.note(read, 1)
    moment = ring.at(1)
    assert moment is not None
    assert moment.topology == read
    assert "_roles" in vars(read)
    assert "_roles" not in vars(moment.topology)


def test_a_clock_that_goes_back_does_not_confuse_it() -> None:
    ring = Ring()
    ring.note(view(1), 100)
    ring.note(view(2), 50)
    moment = ring.at(100)
    assert moment is not None
    assert moment.topology.revision == 2


def test_the_answer_reads_as_the_view_it_was() -> None:
    ring = Ring()
    ring.note(view(1), 100)
    ring.note(view(2), 200)
    read = read_remembered(remembered(ring, 150))
    assert (read.time_ms, read.oldest_ms, read.revision) == (100, 100, 1)
    assert read.topology == view(1)
    unknown = read_remembered(remembered(ring, 99))
    assert (unknown.time_ms, unknown.oldest_ms) == (None, 100)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"oldest_ms":"x"}'])
def test_another_answer_is_a_store_error(body: bytes) -> None:
    with pytest.raises(StoreError):
        read_remembered(body)
