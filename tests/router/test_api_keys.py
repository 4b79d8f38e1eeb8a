"""Key files: what is read, what is refused, and that no message repeats a secret."""

from __future__ import annotations

import hashlib

import pytest

from pdcore.router.api_keys import ApiKeys

pytestmark = pytest.mark.unit

KEY = "sk-0123456789abcdef"


def line(key: str, name: str = "team-a") -> str:
    """One line of a key file."""
    return f"{hashlib.sha256(key.encode()).hexdigest()}  {name}"


def test_a_key_is_known_by_the_name_beside_its_hash() -> None:
    keys = ApiKeys.read(f"# people\n\n{line(KEY)}\n  {line('other', 'b').upper().replace('B', 'b')}\n")
    assert keys.who(KEY.encode()) == "team-a"
    assert [
        keys.who(sent) for sent in (b"", b"x", KEY.encode() + b" ", hashlib.sha256(KEY.encode()).digest())
    ] == [None] * 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 keys"),
        ("# nothing\n", "0 keys"),
        (KEY, "line 1"),
        (f"{line(KEY)}\n{KEY} name", "line 2"),
        (f"{line(KEY)}\n{line(KEY, 'again')}", "line 2 repeats"),
        (line(KEY)[:66], "line 1"),
        (line(KEY, "a/b"), "line 1: the name"),
        (line(KEY)[1:], "line 1"),
    ],
)
def test_a_file_that_is_none_names_its_line_and_repeats_nothing_of_it(text: str, says: str) -> None:
    with pytest.raises(ValueError) as wrong:
        ApiKeys.read(text)
    assert says in str(wrong.value)
    assert KEY not in str(wrong.value)
    assert hashlib.sha256(KEY.encode()).hexdigest() not in str(wrong.value)


def test_no_secret_is_shown() -> None:
    assert "team-a" not in repr(ApiKeys.read(line(KEY)))
