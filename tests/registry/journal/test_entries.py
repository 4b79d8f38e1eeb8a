"""Entries: what is written comes back, what is no entry is refused, old journals are read for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import StoreRefused
from pdcore.registry.journal.chain import EMPTY, Limits, gap_entries, next_entries
from pdcore.registry.journal.entries import (
    PIECE_BYTES,
    Changes,
    Piece,
    Written,
    decode,
    encode,
    pieces,
    stored_keys,
)
from pdcore.registry.journal.replay import Replayer
from pdcore.topology.codec import MAX_VALUE_BYTES
from pdcore.topology.events import diff
from pdcore.topology.topology import KeyChange, Stored, Topology, build

pytestmark = pytest.mark.unit

quickly = settings(deadline=None, max_examples=30)
GOLDEN = Path(__file__).parent / "golden"
values = st.none() | st.binary(max_size=64) | st.text(max_size=64).map(lambda text: text.encode())


@given(st.text(max_size=32), values)
@quickly
def test_a_change_comes_back_as_it_was(key: str, value: bytes | None) -> None:
    entry = next_entries(EMPTY, 7, [KeyChange(key, value, 7)], 1, limits=Limits())[0]
    read = decode(encode(entry))
    assert read == entry
    assert isinstance(read, Changes)
    assert read.key_changes == (KeyChange(key, value, 7),)


@given(st.dictionaries(st.text(max_size=16), st.binary(max_size=64), max_size=8))
@quickly
def test_a_snapshot_comes_back_as_it_was(keys: dict[str, bytes]) -> None:
    view = {key: Stored(value, place) for place, (key, value) in enumerate(keys.items())}
    read: dict[str, Stored] = {}
    for piece in pieces(view, revision=9, number=1, left=1, time_ms=1):
        again = decode(encode(piece))
        assert isinstance(again, Piece)
        read |= stored_keys(again)
    assert read == view


def test_a_large_snapshot_is_many_pieces_of_bounded_size() -> None:
    view = {f"routers/r{number}": Stored(b"x" * 1000, 1) for number in range(1000)}
    cut = pieces(view, revision=9, number=1, left=1, time_ms=1)
    assert [piece.part for piece in cut] == list(range(1, len(cut) + 1))
    assert {piece.parts for piece in cut} == {len(cut)}
    assert max(len(encode(piece)) for piece in cut) < 2 * PIECE_BYTES
    assert sum(len(piece.keys) for piece in cut) == len(view)


def test_a_value_too_long_for_a_record_takes_no_room_and_replays_equal() -> None:
    value = b"x" * (MAX_VALUE_BYTES + 5)
    written = Written.of("instances/p0", value)
    assert len(json.dumps(written.size)) < 10
    raw = written.raw
    assert raw is not None
    keys = [{"instances/p0": Stored(one, 3)} for one in (value, raw)]
    assert build(keys[0], 3) == build(keys[1], 3)
    assert build(keys[0], 3).rejected == build(keys[1], 3).rejected


def test_a_size_that_somebody_made_up_allocates_nothing_of_that_size() -> None:
    raw = Written(key="a", size=10**12).raw
    assert raw is not None
    assert len(raw) <= 8 << 20


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[" * 5000,
        b'{"kind":"changes","revision":1}',
        b'{"kind":"another","revision":1}',
        b'{"kind":"gap","v":2,"revision":1,"number":1,"time_ms":1,"after":0,"base":0,"reason":"x"}',
        b'{"kind":"gap","v":1,"revision":"1","number":1,"time_ms":1,"after":0,"base":0,"reason":"x"}',
    ],
)
def test_what_is_no_entry_is_refused_in_a_sentence(line: bytes) -> None:
    with pytest.raises(StoreRefused, match="an entry of the journal"):
        decode(line)


def test_unknown_fields_are_left_alone() -> None:
    (gap, _) = gap_entries(EMPTY, 5, "x", 1, snapshot={}, limits=Limits())
    line = json.dumps({**json.loads(encode(gap)), "later": [1]}).encode()
    assert decode(line) == gap


@pytest.mark.parametrize("history", sorted(GOLDEN.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_golden_history_replays_for_ever(history: Path) -> None:
    """One entry per line as in the stream; beside it, what each step told when the file was made."""
    expected = json.loads(history.with_suffix(".json").read_text(encoding="utf-8"))
    replayer, topology, told = Replayer(), Topology.empty(), []
    for line in history.read_bytes().splitlines():
        step = replayer.take(decode(line))
        if step is None:
            continue
        after = step.topology(topology)
        told.append(
            {
                "revision": step.revision,
                "time_ms": step.time_ms,
                "lost": step.lost,
                "events": [event.log_fields() for event in diff(topology, after)],
            }
        )
        topology = after
    assert told == expected["steps"]
    assert sorted(topology.instances) == expected["instances"]
    assert {key: one.reason for key, one in topology.rejected.items()} == expected["rejected"]
    assert topology.store_id == expected["store_id"]
