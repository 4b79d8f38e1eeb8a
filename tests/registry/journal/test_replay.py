"""A replay gives the same topologies as following live did, whatever was written, lost and trimmed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.registry.journal.chain import EMPTY, Limits, Tail, gap_entries, is_enough, next_entries, tail_of
from pdcore.registry.journal.entries import Changes, Entry, Gap, Piece, decode, encode
from pdcore.registry.journal.replay import Replayer, Step
from pdcore.topology.events import diff
from pdcore.topology.topology import KeyChange, Stored, Topology, build, fold
from tests.topology.histories import History, Write, histories

pytestmark = pytest.mark.unit

LIMITS = Limits(snapshot_every=2)
quickly = settings(deadline=None, max_examples=30)


def journal_of(history: History, gaps: Sequence[int] = ()) -> list[Entry]:
    """What writers leave of ``history``; before each revision of ``gaps`` one revision is lost."""
    entries = list(gap_entries(EMPTY, 1, "began", 1, snapshot=history.listed(1), limits=LIMITS))
    for revision in range(2, history.end + 1):
        tail = tail_of(entries[-1])
        if revision in gaps:
            keys = history.listed(revision)
            entries += gap_entries(tail, revision, "lost", revision, snapshot=keys, limits=LIMITS)
        elif revision + 1 not in gaps:
            due = history.listed(revision) if tail.snapshot_due else None
            changes = history.changes(revision, revision)
            entries += next_entries(tail, revision, changes, revision, snapshot=due, limits=LIMITS)
    return [decode(encode(entry)) for entry in entries]


def replayed(entries: Sequence[Entry]) -> list[tuple[Step, Topology]]:
    """Every step and the topology after it."""
    replayer, topology, seen = Replayer(), Topology.empty(), []
    for entry in entries:
        step = replayer.take(entry)
        if step is not None:
            topology = step.topology(topology)
            seen.append((step, topology))
    return seen


@given(histories)
@quickly
def test_a_replay_gives_the_topologies_and_events_of_a_live_follower(history: History) -> None:
    live = build(history.listed(1), 1)
    steps = replayed(journal_of(history))
    assert steps[0][1] == live
    assert [step.revision for step, _ in steps] == list(range(1, history.end + 1))
    for (step, after), (_, before) in zip(steps[1:], steps, strict=False):
        followed = fold(live, step.revision, history.changes(step.revision, step.revision))
        assert after == followed == build(history.listed(step.revision), step.revision)
        assert after.revision == followed.revision
        assert diff(before, after) == diff(live, followed)
        assert step.lost is None
        live = followed


@given(histories, st.sets(st.integers(3, 8)))
@quickly
def test_a_gap_is_told_and_what_follows_is_true_again(history: History, gaps: set[int]) -> None:
    gaps -= {gap + 1 for gap in gaps}
    for step, topology in replayed(journal_of(history, sorted(gaps)))[1:]:
        assert topology == build(history.listed(step.revision), step.revision)
        assert (step.lost == "lost") == (step.revision in gaps)


@given(histories, st.data())
@quickly
def test_a_replay_may_begin_at_any_segment(history: History, data: st.DataObject) -> None:
    entries = journal_of(history)
    bases = [entry.revision for entry in entries if isinstance(entry, Piece)]
    base = data.draw(st.sampled_from(bases))
    (first, begun), *rest = replayed([entry for entry in entries if entry.revision >= base])
    assert (first.revision, begun) == (base, build(history.listed(base), base))
    for step, topology in rest:
        assert topology == build(history.listed(step.revision), step.revision)
        assert step.lost is None


@given(histories, st.data())
@quickly
def test_a_change_that_is_missing_is_never_silent(history: History, data: st.DataObject) -> None:
    entries = journal_of(history)
    changes = [entry for entry in entries[:-1] if isinstance(entry, Changes)]
    if not changes:
        return
    missing = data.draw(st.sampled_from(changes))
    rest = replayed([entry for entry in entries if entry is not missing])
    behind = [step for step, _ in rest if step.revision >= missing.revision]
    assert not behind or behind[0].lost is not None


def test_a_change_without_its_predecessor_says_what_is_missing() -> None:
    history = History([{"routers/r0": b"1"}, {"routers/r0": None}, {"routers/r1": b"2"}])
    entries = [entry for entry in journal_of(history) if entry.revision != 2]
    assert replayed(entries)[-1][0].lost == "the journal misses what happened between 1 and 2"


def test_a_missing_change_is_told_also_where_the_snapshot_behind_it_says_the_same() -> None:
    writes: list[Write] = [{f"routers/r{n}": b"1"} for n in range(3)]
    writes.append({"routers/r3": None})
    entries = journal_of(History(writes))
    assert isinstance(entries[-1], Piece)
    assert isinstance(entries[-2], Changes)
    last, _ = replayed([*entries[:-2], entries[-1]])[-1]
    assert last.lost == "the journal misses what happened between 3 and 4"


def test_times_never_go_back_in_a_replay() -> None:
    tail = tail_of(gap_entries(EMPTY, 1, "began", 500, snapshot={}, limits=LIMITS)[-1])
    entries = gap_entries(EMPTY, 1, "began", 500, snapshot={}, limits=LIMITS)
    entries += next_entries(tail, 2, [KeyChange("routers/r0", b"x", 2)], 400, limits=LIMITS)
    assert [step.time_ms for step, _ in replayed(entries)] == [500, 500]


def test_a_snapshot_cut_short_is_none() -> None:
    view = {f"routers/r{number}": Stored(b"x" * 40_000, 1) for number in range(4)}
    entries = gap_entries(EMPTY, 1, "began", 1, snapshot=view, limits=LIMITS)
    assert len(entries) > 2
    assert replayed(entries[:-1]) == []
    assert replayed([entries[0], *entries[2:]]) == []


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**6), st.integers(0, 10**6))
@quickly
def test_a_segment_is_enough_once_it_holds_what_must_be_kept(
    base: int, newest: int, at_ms: int, now_ms: int
) -> None:
    head = Gap(revision=base + 1, number=base, time_ms=at_ms, after=0, base=0, reason="")
    enough = is_enough(head, Tail(number=newest), now_ms, Limits(length=10, age_s=100))
    assert enough == (newest - base >= 10 or now_ms - at_ms >= 100_000)
