"""Stop strings end an answer where a search of the whole text would, and nothing of them is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.model.stop_strings import StopStrings

pytestmark = pytest.mark.unit


def searched(text: str, stops: list[str]) -> tuple[str, bool]:
    """Grow the text by one character at a time until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    strings, shown, stopped = StopStrings(stops), "", False
    for piece in pieces:
        emitted, stopped = strings.push(piece)
        shown += emitted
    return shown + strings.flush(), stopped


letters = st.text("ab", max_size=6)


@given(st.lists(letters, max_size=8), st.lists(letters, max_size=3))
def test_any_cut_gives_what_a_search_of_the_whole_text_gives(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == searched("".join(pieces), stops)


@given(letters, st.lists(letters, max_size=8), st.lists(st.text("ab", min_size=1, max_size=6), min_size=1))
def test_what_is_shown_never_has_to_be_taken_back(begin: str, rest: list[str], stops: list[str]) -> None:
    strings = StopStrings(stops)
    shown, _ = strings.push(begin)
    final, _ = run([begin, *rest], stops)
    assert final.startswith(shown)


def test_the_longest_of_two_that_end_together_is_cut() -> None:
    assert run(["one two"], ["two", " two"]) == ("one", True)


def test_the_one_that_is_complete_first_wins_even_inside_another() -> None:
    assert run(["xabcdx"], ["abcd", "c"]) == ("xab", True)


def test_an_unfinished_stop_string_is_text_in_the_end() -> None:
    strings = StopStrings(["END"])
    assert strings.push("the EN") == ("the ", False)
    assert strings.flush() == "EN"


def test_nothing_is_shown_after_the_stop() -> None:
    strings = StopStrings(["."])
    assert strings.push("a.b") == ("a", True)
    assert strings.push("c") == ("", True)
    assert strings.flush() == ""


def test_without_stop_strings_everything_is_shown_at_once() -> None:
    assert StopStrings(["", ""]).push("any") == ("any", False)
