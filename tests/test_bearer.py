"""A token: what is one, how it is sent, and that nothing repeats it."""

from __future__ import annotations

import pytest

from pdcore.bearer import Token, credentials

pytestmark = pytest.mark.unit

KEY = "sk-0123456789abcdef"


def test_a_token_is_one_line_and_is_compared_whole() -> None:
    token = Token.read(f"  {KEY}\n")
    assert token.is_sent(KEY.encode())
    assert not any(token.is_sent(sent) for sent in (b"", KEY.encode()[:-1], KEY.encode() + b"x", b"\xff"))


@pytest.mark.parametrize("text", ["", "short", "two\nlines-of-0123456789", "with blank 0123456789", "ü" * 20])
def test_a_token_that_is_none_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError) as wrong:
        Token.read(text)
    assert not text or text not in str(wrong.value)


def test_a_token_is_sent_so_that_it_is_found_and_is_never_shown() -> None:
    token = Token.read(KEY)
    sent = [(name.encode(), value.encode()) for name, value in token.headers().items()]
    assert token.is_sent(credentials(sent))
    assert KEY not in repr(token)
