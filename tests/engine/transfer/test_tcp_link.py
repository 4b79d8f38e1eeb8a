"""The bytes of a ``tcp`` link: proofs that hold once, frames whose numbers add up, and nothing but a refusal else."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.transfer import tcp_link
from pdcore.engine.transfer.tcp_link import Head, Kind, Malformed, Offer, Outcome
from pdcore.errors import PeerGone

pytestmark = pytest.mark.unit

NONCE, OTHER = b"n" * 32, b"o" * 32
KEY = tcp_link.link_key("ab" * 32, b"")
OFFER = Offer(token=b"t" * 16, nbytes=4096, nonce=b"d" * 32, about={"session": "127.0.0.1:1", "base": 7})
COLUMN = np.array([0, 8], np.int64)


def rest_of(offer: Offer, nonce: bytes, key: bytes) -> bytes:
    frame = tcp_link.offer_frame(offer, nonce, key)
    rest = frame[tcp_link.OFFER.size :]
    assert tcp_link.offer_length(frame[: tcp_link.OFFER.size]) == len(rest)
    return rest


def test_both_sides_prove_that_they_know_the_key() -> None:
    assert tcp_link.read_greeting(tcp_link.greeting(NONCE)) == NONCE
    assert tcp_link.read_offer(rest_of(OFFER, NONCE, KEY), NONCE, KEY) == OFFER
    tcp_link.check_welcome(tcp_link.welcome(OFFER, NONCE, KEY), OFFER, NONCE, KEY)


@pytest.mark.parametrize(
    "key", [tcp_link.link_key("ab" * 32, b"x"), tcp_link.link_key("ac" * 32, b"")], ids=["secret", "start"]
)
def test_another_secret_or_another_start_proves_nothing(key: bytes) -> None:
    with pytest.raises(Malformed, match="proof"):
        tcp_link.read_offer(rest_of(OFFER, NONCE, key), NONCE, KEY)
    with pytest.raises(Malformed, match="proof"):
        tcp_link.check_welcome(tcp_link.welcome(OFFER, NONCE, key), OFFER, NONCE, KEY)


def test_what_was_recorded_is_worth_nothing_after_another_greeting() -> None:
    with pytest.raises(Malformed, match="proof"):
        tcp_link.read_offer(rest_of(OFFER, NONCE, KEY), OTHER, KEY)
    with pytest.raises(Malformed, match="proof"):
        tcp_link.check_welcome(tcp_link.welcome(OFFER, NONCE, KEY), OFFER, OTHER, KEY)


def test_an_offer_sent_back_is_no_welcome() -> None:
    """The two directions have proofs of their own."""
    proof = rest_of(OFFER, NONCE, KEY)[-tcp_link.PROOF_BYTES :]
    with pytest.raises(Malformed):
        tcp_link.check_welcome(proof, OFFER, NONCE, KEY)


@given(st.binary(max_size=3000))
def test_noise_is_never_an_offer(noise: bytes) -> None:
    with pytest.raises(Malformed):
        tcp_link.read_offer(noise, NONCE, KEY)


@given(st.binary(min_size=1, max_size=200))
def test_a_proven_offer_is_still_checked(body: bytes) -> None:
    proof = tcp_link._proof(KEY, b"decode", NONCE, body)
    with pytest.raises(Malformed):
        tcp_link.read_offer(body + proof, NONCE, KEY)


@pytest.mark.parametrize("length", [0, tcp_link.MAX_OFFER_BYTES + 1, 2**32 - 1])
def test_an_offer_is_short(length: int) -> None:
    with pytest.raises(Malformed):
        tcp_link.offer_length(tcp_link.OFFER.pack(b"pdko", length))


def test_a_frame_reads_as_it_was_written() -> None:
    head = Head(Kind.BLOCKS, 2, 24, 2**64 - 1)
    raw = tcp_link.frame(head, COLUMN, COLUMN + 8)
    assert tcp_link.read_head(raw[: tcp_link.HEAD.size]) == head
    offsets, lengths = tcp_link.read_columns(raw[tcp_link.HEAD.size :], head)
    assert (offsets.tolist(), lengths.tolist()) == ([0, 8], [8, 16])


@pytest.mark.parametrize(
    ("kind", "rows", "total"),
    [
        (Kind.BLOCKS, 0, 0),
        (Kind.BLOCKS, 0, 1),
        (Kind.BLOCKS, 2, 1),
        (Kind.BLOCKS, tcp_link.MAX_ROWS + 1, 1 << 30),
        (Kind.RECORD, 1, tcp_link.MAX_FRAME_BYTES + 1),
        (Kind.BELL, 1, 0),
        (Kind.BELL, 0, 1),
        (0, 1, 1),
        (4, 1, 1),
    ],
)
def test_a_head_out_of_its_limits_begins_no_frame(kind: int, rows: int, total: int) -> None:
    with pytest.raises(Malformed):
        tcp_link.read_head(tcp_link.HEAD.pack(b"pdkf", kind, rows, total, 1))


@given(st.binary(min_size=tcp_link.HEAD.size, max_size=tcp_link.HEAD.size))
def test_noise_begins_no_frame(noise: bytes) -> None:
    with pytest.raises(Malformed):
        tcp_link.read_head(noise)


cells = st.integers(-(2**63), 2**63 - 1)
rows_of_cells = st.lists(st.tuples(cells, cells), min_size=1, max_size=8)
small_rows = st.lists(st.tuples(st.integers(-4, 70), st.integers(-2, 70)), min_size=1, max_size=8)


@given(rows_of_cells | small_rows, st.integers(1, 2**40))
def test_only_rows_that_add_up_and_fit_are_taken(rows: list[tuple[int, int]], total: int) -> None:
    """Against plain integers, which do not overflow."""
    nbytes = 64
    total = sum(length for _, length in rows) if total % 2 else total
    if not len(rows) <= total <= tcp_link.MAX_FRAME_BYTES:
        return
    head = Head(Kind.BLOCKS, len(rows), total, 1)
    raw = struct.pack(f"<{2 * len(rows)}q", *(o for o, _ in rows), *(n for _, n in rows))
    adds_up = all(length >= 1 for _, length in rows) and sum(length for _, length in rows) == total
    try:
        offsets, lengths = tcp_link.read_columns(raw, head)
    except Malformed:
        assert not adds_up
        return
    assert adds_up
    inside = all(0 <= offset and offset + length <= nbytes for offset, length in rows)
    assert tcp_link.fits(offsets, lengths, nbytes) is inside


def test_an_ack_answers_one_frame() -> None:
    assert tcp_link.read_ack(tcp_link.ack(Outcome.REVOKED, 5), 5) is Outcome.REVOKED
    for raw in (tcp_link.ack(Outcome.LANDED, 5), tcp_link.ACK.pack(b"pdka", 9, 6), bytes(tcp_link.ACK.size)):
        with pytest.raises(Malformed):
            tcp_link.read_ack(raw, 6)


ENDPOINT: dict[str, object] = {
    "engine": "tcp",
    "version": 1,
    "host": "127.0.0.1",
    "port": 9,
    "key": "ab" * 32,
}


def test_an_endpoint_may_say_more_than_we_know() -> None:
    assert tcp_link.read_endpoint(ENDPOINT | {"later": 1}, "tcp").port == 9


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "shm"},
        {"version": 2},
        {"host": ""},
        {"port": 0},
        {"port": "9"},
        {"key": "ab"},
        {"key": "AB" * 32},
    ],
    ids=str,
)
def test_an_endpoint_that_is_none_of_ours_is_nobody(change: dict[str, object]) -> None:
    with pytest.raises(PeerGone) as gone:
        tcp_link.read_endpoint(ENDPOINT | change, "tcp")
    assert not gone.value.in_doubt
