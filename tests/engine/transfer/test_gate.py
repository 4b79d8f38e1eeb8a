"""The gate: a revoke is proven at once, or when the piece that lands right now has landed."""

from __future__ import annotations

import threading

import pytest

from pdcore.engine.transfer.gate import Gate
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.unit


def test_only_allowed_seqs_get_in() -> None:
    gate = Gate()
    gate.allow(1)
    assert (gate.enter(1), gate.leave(), gate.enter(2)) == (True, None, False)


def test_a_revoke_between_pieces_is_proven_at_once() -> None:
    gate = Gate()
    gate.allow(1)
    assert gate.enter(1)
    assert gate.leave() is None
    assert gate.revoke(1) is True
    assert not gate.enter(1)


def test_a_revoke_inside_is_told_by_the_leave_once() -> None:
    gate = Gate()
    gate.allow(1)
    gate.allow(2)
    assert gate.enter(1)
    assert (gate.revoke(2), gate.revoke(1)) == (True, False)
    assert gate.leave() == 1
    assert not gate.enter(1)
    gate.allow(3)
    assert (gate.enter(3), gate.leave()) == (True, None)


def test_a_closed_gate_lets_nothing_in() -> None:
    gate = Gate()
    gate.allow(1)
    gate.close()
    assert not gate.enter(1)
    assert gate.revoke(1) is True


def test_a_reader_that_hammers_is_out_once_a_revoke_is_proven() -> None:
    """Whatever instant a revoke meets: proven, or told exactly once by the reader as it leaves."""
    gate, told, ending = Gate(), [0], threading.Event()
    wanted, entered = 1, 0

    def read() -> None:
        nonlocal entered
        while not ending.is_set():
            if gate.enter(wanted):
                entered += 1
                left = gate.leave()
                told.extend([left] if left is not None else [])

    reader = threading.Thread(target=read)
    reader.start()
    later = 0
    try:
        for seq in range(1, 500):
            gate.allow(seq)
            wanted = seq
            if not gate.revoke(seq):
                later += 1
                eventually_now(lambda seq=seq: told[-1] == seq, 10)  # type: ignore[misc]
    finally:
        ending.set()
        reader.join(10)
    assert len(told) == later + 1
