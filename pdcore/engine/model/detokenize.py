"""Tokens to text while they arrive: characters come out once no later token can change them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from tokenizers import Tokenizer, pre_tokenizers

REPLACEMENT: Final = "\ufffd"
_LONGEST_PREFIX: Final = 3
"""A character has at most four bytes, so an incomplete one has at most three, each its own token at worst."""
_CONTEXT: Final = 6


class Detokenizer(Protocol):
    """The text of one answer, piece by piece. Special tokens and ids outside the vocabulary have no text."""

    def push(self, token_ids: Iterable[int]) -> str:
        """The text these tokens complete; bytes of an unfinished character wait for the next push."""
        ...

    def flush(self) -> str:
        """The end of the text: an unfinished character comes out as U+FFFD."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies, where every token is a run of bytes: exact, and no token is looked at twice."""

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(b"".join(self._token_bytes.get(token, b"") for token in token_ids))

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class WindowDetokenizer:
    """For any other vocabulary: decode a window of recent tokens with and without the new ones, emit the difference.

    ``prompt`` gives the first token its neighbours, so that a leading space is text and not the start of a sentence.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-_CONTEXT:])
        self._done = len(self._window)  # tokens of the window whose text is out

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join(self._push_one(token) for token in token_ids)

    def flush(self) -> str:
        text = self._new_text()
        self._window, self._done = [], 0
        return text

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        text = self._new_text()
        waiting = len(self._window) - self._done
        if text.endswith(REPLACEMENT) and waiting <= _LONGEST_PREFIX:
            return ""
        self._window = self._window[self._done :] if text else self._window[-_CONTEXT:]
        self._done = len(self._window)
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._window[: self._done], skip_special_tokens=True)
        after = self._tokenizer.decode(self._window, skip_special_tokens=True)
        return str(after[len(before) :])


def byte_vocabulary(tokenizer: Tokenizer) -> dict[int, bytes]:
    """The bytes of every token of a byte-level vocabulary, special tokens left out."""
    to_byte = _byte_alphabet()
    added = tokenizer.get_added_tokens_decoder()
    vocabulary: dict[int, bytes] = {}
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if number in added and added[number].special:
            continue
        known = [to_byte.get(character) for character in token]
        whole = bytes(byte for byte in known if byte is not None)
        vocabulary[number] = whole if len(whole) == len(token) else token.encode()
    return vocabulary


def _byte_alphabet() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves and the others as characters from U+0100 on."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    printable = {chr(byte): byte for byte in range(256) if chr(byte) in alphabet}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return printable | {chr(0x100 + position): byte for position, byte in enumerate(others)}
