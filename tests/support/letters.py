"""A text codec a person can follow: a token is a character's code, and 0 ends a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VOCAB_SIZE = 1 << 16


class Letters:
    """Codes to characters; ``~`` in a token stream is held back until the next one, like half a UTF-8 character."""

    eos_token_ids: tuple[int, ...] = (0,)
    longest_token_bytes = 1

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text if character != "\N{ZERO WIDTH SPACE}"]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode("".join(f"{m['role'][0]}:{m['content']};" for m in messages))

    def detokenizer(self, prompt: Sequence[int] = ()) -> HoldingBack:
        return HoldingBack()


class HoldingBack:
    """Keeps a final ``~`` to itself until more comes."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        text = self._held + "".join(map(chr, token_ids))
        self._held = "~" if text.endswith("~") else ""
        return text.removesuffix("~")

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text
