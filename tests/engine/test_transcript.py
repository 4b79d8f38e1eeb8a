"""Tokens to text: the same pieces whatever arrives together, stops cut, endings counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.logprobs import Scorer
from pdcore.engine.model.stop_strings import StopStrings
from pdcore.engine.transcript import Endings, Piece, Transcript
from pdcore.engine.transfer.orders import TokenLogprobs
from pdcore.errors import ApiError
from tests.support.letters import Letters

pytestmark = pytest.mark.unit


def transcript(*stops: str, min_tokens: int = 0, scored: bool = False) -> Transcript:
    letters = Letters()
    return Transcript(
        letters.detokenizer(),
        StopStrings(stops),
        Endings(silent_ids=frozenset({0}), min_tokens=min_tokens),
        scorer=Scorer(letters.token_bytes) if scored else None,
    )


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def said(piece: Piece) -> tuple[str, str | None]:
    return piece.text, piece.finish_reason


def logprobs(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(logprob=-1.0 - place, top=((97, -0.5),)) for place in range(count)]


def test_text_comes_as_tokens_do() -> None:
    writing = transcript()
    assert said(writing.push(ids("he"), None)) == ("he", None)
    assert said(writing.push(ids("llo"), "length")) == ("llo", "length")
    assert writing.completion_tokens == 5


def test_the_end_token_is_counted_but_not_shown() -> None:
    writing = transcript()
    assert said(writing.push([*ids("hi"), 0], "stop")) == ("hi", "stop")
    assert writing.completion_tokens == 3


def test_a_last_token_that_is_no_end_token_is_shown() -> None:
    assert said(transcript().push(ids("hi"), "stop")) == ("hi", "stop")
    assert said(transcript().push([*ids("h"), 0], "length")) == ("h\0", "length")


def test_half_characters_are_held_back_and_flushed_at_the_end() -> None:
    writing = transcript()
    assert said(writing.push(ids("a~"), None)) == ("a", None)
    assert said(writing.push(ids("b~"), "length")) == ("~b~", "length")


def test_a_stop_string_ends_the_text_before_it_and_later_tokens_do_not_count() -> None:
    writing = transcript("END")
    assert said(writing.push(ids("a E"), None)) == ("a ", None)
    assert said(writing.push(ids("ND and more"), None)) == ("", "stop")
    assert writing.completion_tokens == 5


def test_what_could_have_become_a_stop_string_is_shown_when_it_did_not() -> None:
    assert said(transcript("END").push(ids("the EN"), "length")) == ("the EN", "length")


def test_a_stop_string_completed_by_the_flush_stops() -> None:
    assert said(transcript("a~").push(ids("ba~"), "length")) == ("b", "stop")


@given(st.text("abEND~", max_size=24), st.lists(st.integers(1, 5), max_size=24))
def test_pieces_do_not_depend_on_what_arrives_together(text: str, cuts: list[int]) -> None:
    tokens = [*ids(text), ord("z")]
    whole = transcript("END", "ba")
    expected = whole.push(tokens, "length")
    split = transcript("END", "ba")
    pieces: list[Piece] = []
    while tokens and not (pieces and pieces[-1].finish_reason):
        size = cuts.pop() if cuts else len(tokens)
        now, tokens = tokens[:size], tokens[size:]
        pieces.append(split.push(now, None if tokens else "length"))
    assert "".join(piece.text for piece in pieces) == expected.text
    assert pieces[-1].finish_reason == expected.finish_reason
    assert split.completion_tokens == whole.completion_tokens


def test_every_token_that_is_counted_is_scored_and_no_other() -> None:
    writing = transcript("END", scored=True)
    first = writing.push(ids("a~E"), None, logprobs(3))
    last = writing.push(ids("NDxy"), None, logprobs(4))
    scored = [*first.scored, *last.scored]
    assert "".join(one.chosen.text for one in scored) == "a~END"
    assert [one.offset for one in scored] == [0, 1, 2, 3, 4]
    assert [one.chosen.logprob for one in scored] == [-1, -2, -3, -1, -2]
    assert len(scored) == writing.completion_tokens == 5
    assert (first.text + last.text, last.finish_reason) == ("a~", "stop")


def test_an_end_token_is_scored_by_its_name() -> None:
    piece = transcript(scored=True).push([97, 0], "stop", logprobs(2))
    assert [one.chosen.raw for one in piece.scored] == [b"a", b"<end>"]
    assert piece.token_ids == (97, 0)


@pytest.mark.parametrize("given", [0, 1, 3])
def test_scores_that_do_not_come_are_an_error(given: int) -> None:
    with pytest.raises(ApiError, match="log probabilities") as caught:
        transcript(scored=True).push(ids("ab"), None, logprobs(given))
    assert caught.value.code == "prefill_failed"


def test_no_stop_string_counts_before_the_least_number_of_tokens() -> None:
    writing = transcript("END", min_tokens=4)
    assert said(writing.push(ids("ENDE"), None)) == ("ENDE", None)
    assert said(writing.push(ids("ND!ENDx"), None)) == ("ND!", "stop")
    assert writing.completion_tokens == 10


@given(st.text("abEN~", max_size=24), st.data())
def test_a_resumed_transcript_goes_on_as_if_it_had_not_stopped(text: str, data: st.DataObject) -> None:
    whole = transcript("END", "ba")
    tokens, cut = [*ids(text), ord("z")], data.draw(st.integers(0, len(text)))
    before = whole.push(tokens[:cut], None) if cut else Piece("", None)
    if before.finish_reason is not None:
        return
    known = data.draw(st.integers(0, len(before.text)))
    after = whole.push(tokens[cut:], "length")
    resumed = transcript("END", "ba")
    replayed = resumed.replay(tokens[:cut], None, known)
    assert replayed.text == before.text[known:]
    assert replayed.token_ids == ()
    rest = resumed.push(tokens[cut:], "length")
    assert (rest.text, rest.finish_reason) == (after.text, after.finish_reason)
    assert resumed.completion_tokens == whole.completion_tokens


def test_more_text_than_was_generated_cannot_have_been_sent() -> None:
    with pytest.raises(ApiError) as caught:
        transcript().replay(ids("abc"), None, 5)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "resume.emitted_chars")
    assert "2 more" in caught.value.message


def test_an_answer_that_was_complete_ends_in_its_replay() -> None:
    assert said(transcript().replay([*ids("abc"), 0], "stop", 1)) == ("bc", "stop")
    assert said(transcript("c").replay(ids("abc"), None, 1)) == ("b", "stop")
