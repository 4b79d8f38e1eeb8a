"""Beats and probes between two sessions: who is silent, who is down, and that neither frees memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from pdcore.engine.transfer.memory import on_host
from pdcore.engine.transfer.orders import Arrived, Drained, HandoffFailed, Handshaken, SendFailed, Sent
from pdcore.engine.transfer.plan import Buffer
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.shm_sender import ShmSender
from pdcore.errors import TransferTimeout
from tests.engine.transfer import ranks
from tests.engine.transfer.ranks import Context, Decode, Prefill, ShiftedClock, got, has, run

pytestmark = pytest.mark.integration


class ProbedSender(ShmSender):
    """Notes every record it writes; fails them while a test says so."""

    records: ClassVar[list[int]] = []
    broken: ClassVar[list[str]] = []

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        if self.broken:
            raise TransferTimeout(self.broken[0], in_doubt=False)
        self.records.append(seq)
        super().write_bytes(token, offset, data, seq)


class ProbedEngine(ShmEngine):
    """``shm`` under watch."""

    def sender(self, source: Buffer, runtime_dir: Path) -> ProbedSender:
        return ProbedSender(on_host(source), runtime_dir)


class Pair:
    """A prefill and a decode rank on one shifted clock."""

    def __init__(self, prefill: Prefill, decode: Decode, clock: ShiftedClock) -> None:
        self.prefill, self.decode, self.clock = prefill, decode, clock
        self.prefill.clock = clock
        self.peer = ranks.peer_at(prefill.session.endpoint)

    def link(self) -> None:
        """One whole hand-off: the pair knows each other and is idle."""
        self.prefill.expect(1, ranks.tokens_of(1))
        self.decode.open(1, self.peer, (30, 31))
        run(lambda: has(self.decode, Arrived) and has(self.prefill, Sent), self.prefill, self.decode)
        self.decode.events.clear()
        self.prefill.events.clear()

    def down(self) -> list[str]:
        return [down.why for down in self.decode.session.statistics().peers_down]


@pytest.fixture
def pair(context: Context, runtime_dir: Path) -> Iterator[Pair]:
    clock = ShiftedClock()
    ProbedSender.records.clear()
    ProbedSender.broken.clear()
    with (
        ranks.sending(context, runtime_dir, engine=ProbedEngine(), clock=clock) as sending,
        ranks.receiving(context, clock=clock) as receiving,
    ):
        yield Pair(Prefill(sending), Decode(receiving, clock), clock)


def test_a_prefill_that_says_nothing_fails_its_requests_and_frees_nothing_until_it_speaks(pair: Pair) -> None:
    pair.prefill.sends = False
    pair.prefill.expect(3, ranks.tokens_of(3), within_s=900)
    handoff = pair.decode.open(3, pair.peer, (1, 2), within_s=900)
    run(lambda: has(pair.prefill, Handshaken), pair.prefill, pair.decode)
    [link] = pair.decode.session._links.values()
    run(lambda: has(pair.decode, HandoffFailed), pair.decode, ageing=pair.clock)
    assert pair.clock.now() - link.liveness.asked_at >= 20
    [failed] = got(pair.decode, HandoffFailed)
    assert (failed.handoff, failed.code) == (handoff, "prefill_failed")
    assert "said nothing for 20 s" in failed.message
    assert pair.down() == ["it said nothing for 20 s"]
    pair.clock.shift_s += 1000
    for _ in range(20):
        pair.decode.turn()
    assert not has(pair.decode, Drained), "no silence frees memory"
    counts = pair.decode.session.statistics().failures
    assert ([path.reason for path in counts.transfer], counts.request) == (["silent"], {})
    run(lambda: has(pair.decode, Drained), pair.prefill, pair.decode)
    assert pair.down() == []
    assert pair.decode.session.statistics().slots_used == 0


def test_a_decode_that_says_nothing_fails_its_rooms_at_prefill(pair: Pair) -> None:
    pair.prefill.sends = False
    pair.prefill.expect(3, ranks.tokens_of(3), within_s=900)
    pair.decode.open(3, pair.peer, (1, 2), within_s=900)
    run(lambda: has(pair.prefill, Handshaken), pair.prefill, pair.decode)
    run(lambda: has(pair.prefill, SendFailed), pair.prefill, ageing=pair.clock)
    [failed] = got(pair.prefill, SendFailed)
    assert (failed.code, "said nothing for 20 s" in failed.message) == ("decode_failed", True)
    assert [path.reason for path in pair.prefill.session.statistics().failures.transfer] == ["silent"]
    run(lambda: has(pair.decode, Drained), pair.prefill, pair.decode)
    assert got(pair.decode, HandoffFailed)[0].code in ("decode_failed", "prefill_failed")


def test_two_sides_that_answer_each_other_never_fall_silent(pair: Pair) -> None:
    pair.prefill.sends = False
    pair.prefill.expect(3, ranks.tokens_of(3), within_s=9000)
    pair.decode.open(3, pair.peer, (1, 2), within_s=9000)
    run(lambda: has(pair.prefill, Handshaken), pair.prefill, pair.decode)
    [link] = pair.decode.session._links.values()
    for _ in range(30):
        pair.clock.shift_s += 5
        run(lambda: link.liveness.beat_at > pair.clock.now(), pair.decode)
        run(lambda: link.liveness.asked_at == math.inf, pair.prefill, pair.decode)
    assert pair.decode.events == []
    pair.prefill.send(3, ranks.tokens_of(3))
    run(lambda: has(pair.decode, Arrived), pair.prefill, pair.decode)


def test_an_idle_pair_is_proven_by_a_record_at_most_every_five_seconds(pair: Pair) -> None:
    pair.link()
    before = len(ProbedSender.records)
    for expected in range(1, 4):
        pair.clock.shift_s += 4
        for _ in range(5):
            run(lambda: True, pair.prefill, pair.decode)
        assert len(ProbedSender.records) == before + expected - 1, "too early"
        pair.clock.shift_s += 2
        run(
            lambda wanted=before + expected: len(ProbedSender.records) == wanted,  # type: ignore[misc]
            pair.prefill,
            pair.decode,
        )
        for _ in range(5):
            run(lambda: True, pair.prefill, pair.decode)
    assert pair.down() == []
    assert (pair.decode.events, pair.prefill.events) == ([], [])
    assert pair.decode.session.statistics().slots_used == 0


def test_a_probe_that_fails_takes_the_peer_down_and_the_next_one_brings_it_back(pair: Pair) -> None:
    pair.link()
    ProbedSender.broken.append("no path to host")
    pair.clock.shift_s += 6
    run(lambda: pair.down() == ["no path to host"], pair.prefill, pair.decode)
    ProbedSender.broken.clear()
    pair.clock.shift_s += 6
    run(lambda: pair.down() == [], pair.prefill, pair.decode)


def test_a_probe_that_is_not_seen_takes_the_peer_down(pair: Pair) -> None:
    pair.link()
    pair.clock.shift_s += 6
    run(lambda: True, pair.decode)
    pair.clock.shift_s += 6
    run(lambda: pair.down() == ["its probe was not seen in time"], pair.decode)
    [down] = pair.decode.session.statistics().peers_down
    assert (down.instance_id, down.incarnation, down.rank) == ("p", "p1", "0.0.0")
    run(lambda: pair.down() == [], pair.prefill, pair.decode)


def test_more_peers_than_probe_slots_are_served_without_a_proof(context: Context, runtime_dir: Path) -> None:
    clock = ShiftedClock()
    with (
        ranks.sending(context, runtime_dir, clock=clock) as sending,
        ranks.receiving(context, clock=clock, probes=0) as receiving,
    ):
        pair = Pair(Prefill(sending), Decode(receiving, clock), clock)
        pair.link()
        for _ in range(5):
            pair.clock.shift_s += 6
            run(lambda: True, pair.prefill, pair.decode)
        assert pair.down() == []
        pair.prefill.expect(5, ranks.tokens_of(5))
        pair.decode.open(5, pair.peer, (1, 2))
        run(lambda: has(pair.decode, Arrived), pair.prefill, pair.decode)
