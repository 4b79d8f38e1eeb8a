"""A text codec a person can follow: a token is a character's code, and 0 ends a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VOCAB_SIZE = 1 << 16


class Letters:
    """Codes to characters; ``~`` in a token stream is held back until the next one, like half a UTF-8 character."""

    eos_token_ids: tuple[int, ...] = (0,)
    longest_token_bytes = 1

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(character) for character in text if character != "\N{ZERO WIDTH SPACE}"]

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Messages by their roles' first letters; tools and arguments as their counts, if there are any."""
        said = "".join(f"{str(m['role'])[0]}:{m['content']};" for m in messages)
        said += f"t{len(tools)}" if tools else ""
        return self.encode(said + (f"a{len(arguments)}" if arguments else ""))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode() if token_id else b"<end>"

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
