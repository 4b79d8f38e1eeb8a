"""The record that carries first-token logprobs: whole and one's own, or nothing."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.transfer import aux_record
from pdcore.engine.transfer.orders import MAX_TOP_LOGPROBS, TokenLogprobs

pytestmark = pytest.mark.unit

SAMPLE = TokenLogprobs(logprob=-0.5, top=((7, -0.5), (2**32 - 1, -1.25)))
LOGPROB = st.floats(width=32, allow_nan=False)
PAIRS = st.lists(st.tuples(st.integers(0, 2**32 - 1), LOGPROB), max_size=MAX_TOP_LOGPROBS).map(tuple)
NUMBER = st.integers(1, 2**63 - 1)


@given(LOGPROB, PAIRS, NUMBER, NUMBER)
def test_logprobs_survive_the_round_trip(
    logprob: float, top: tuple[tuple[int, float], ...], seq: int, room: int
) -> None:
    sent = TokenLogprobs(logprob=logprob, top=top)
    record = aux_record.encode(sent, seq=seq, room=room)
    assert len(record) == aux_record.AUX_BYTES
    assert aux_record.accept(record, seq=seq, room=room) == sent


def test_another_seq_or_room_reads_as_nothing() -> None:
    record = aux_record.encode(SAMPLE, seq=5, room=9)
    assert aux_record.accept(record, seq=6, room=9) is None
    assert aux_record.accept(record, seq=5, room=8) is None


@pytest.mark.parametrize("cut", range(aux_record.AUX_BYTES))
def test_a_record_that_is_partly_the_one_before_reads_as_nothing(cut: int) -> None:
    old = aux_record.encode(TokenLogprobs(logprob=-3.0, top=((1, -3.0),)), seq=4, room=8)
    new = aux_record.encode(SAMPLE, seq=5, room=9)
    torn = new[:cut] + old[cut:]
    assert torn == new or aux_record.accept(torn, seq=5, room=9) is None


def test_the_bytes_are_the_documented_ones() -> None:
    record = aux_record.encode(SAMPLE, seq=5, room=9)
    assert struct.unpack_from("<HBxfQQIf", record) == (0x9D02, 2, -0.5, 5, 9, 7, -0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        TokenLogprobs(logprob=0.0, top=((1, 0.0),) * 21),
        TokenLogprobs(logprob=0.0, top=((-1, 0.0),)),
        TokenLogprobs(logprob=0.0, top=((2**32, 0.0),)),
        TokenLogprobs(logprob=1e300),
    ],
)
def test_what_does_not_fit_is_refused(wrong: TokenLogprobs) -> None:
    with pytest.raises(ValueError):
        aux_record.encode(wrong, seq=1, room=1)
