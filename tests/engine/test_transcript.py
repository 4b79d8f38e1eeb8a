"""Tokens to text: the same pieces whatever arrives together, stops cut, endings counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.model.stop_strings import StopStrings
from pdcore.engine.transcript import Piece, Transcript
from tests.support.letters import Letters

pytestmark = pytest.mark.unit


def transcript(*stops: str, silent: frozenset[int] = frozenset({0})) -> Transcript:
    return Transcript(Letters().detokenizer(), StopStrings(stops), prompt_tokens=3, silent_ids=silent)


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_text_comes_as_tokens_do() -> None:
    writing = transcript()
    assert writing.push(ids("he"), None) == Piece("he", None)
    assert writing.push(ids("llo"), "length") == Piece("llo", "length")
    assert (writing.usage.prompt_tokens, writing.usage.completion_tokens) == (3, 5)


def test_the_end_token_is_counted_but_not_shown() -> None:
    writing = transcript()
    assert writing.push([*ids("hi"), 0], "stop") == Piece("hi", "stop")
    assert writing.usage.completion_tokens == 3


def test_a_last_token_that_is_no_end_token_is_shown() -> None:
    assert transcript().push(ids("hi"), "stop") == Piece("hi", "stop")
    assert transcript().push([*ids("h"), 0], "length") == Piece("h\0", "length")


def test_half_characters_are_held_back_and_flushed_at_the_end() -> None:
    writing = transcript()
    assert writing.push(ids("a~"), None) == Piece("a", None)
    assert writing.push(ids("b~"), "length") == Piece("~b~", "length")


def test_a_stop_string_ends_the_text_before_it_and_later_tokens_do_not_count() -> None:
    writing = transcript("END")
    assert writing.push(ids("a E"), None) == Piece("a ", None)
    assert writing.push(ids("ND and more"), None) == Piece("", "stop")
    assert writing.usage.completion_tokens == 5


def test_what_could_have_become_a_stop_string_is_shown_when_it_did_not() -> None:
    assert transcript("END").push(ids("the EN"), "length") == Piece("the EN", "length")


def test_a_stop_string_completed_by_the_flush_stops() -> None:
    assert transcript("a~").push(ids("ba~"), "length") == Piece("b", "stop")


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
    assert split.usage == whole.usage
