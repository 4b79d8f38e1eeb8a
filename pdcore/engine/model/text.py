"""Text on one side, token ids on the other: what a leader needs of a model. Needs no tensor library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from tokenizers import Tokenizer

from pdcore.engine.model.chat_template import ChatTemplate, Message, Tool
from pdcore.engine.model.config import eos_token_ids
from pdcore.engine.model.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    byte_vocabulary,
)
from pdcore.engine.model.directory import read_json, read_optional_json, refuse
from pdcore.engine.model.stop_strings import StopStrings
from pdcore.errors import ApiError

__all__ = ["Detokenizer", "StopStrings", "TextCodec"]

_TOKENIZER: Final = "tokenizer.json"
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_TOKEN: Final = re.compile("<0x([0-9A-F]{2})>")
"""How vocabularies that are not byte-level spell a space, and a byte that is no character."""


class TextCodec:
    """The tokenizer and chat template of one model directory. Safe to share; its detokenizers are per answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        eos: tuple[int, ...],
        token_bytes: Mapping[int, bytes] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._token_bytes = token_bytes
        self.eos_token_ids = eos

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Read the tokenizer; ConfigError, one sentence, when it is missing or broken."""
        document = read_json(directory, _TOKENIZER)
        try:
            tokenizer = Tokenizer.from_file(str(directory / _TOKENIZER))
        # The library raises bare Exception for every malformed file.
        except Exception as wrong:
            raise refuse(directory, f"{_TOKENIZER} is no usable tokenizer: {wrong}") from wrong
        tokenizer.no_padding()
        tokenizer.no_truncation()
        decoder = document.get("decoder")
        byte_level = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate.from_directory(
                directory, read_optional_json(directory, "tokenizer_config.json") or {}
            ),
            eos=eos_token_ids(directory, read_json(directory, "config.json")),
            token_bytes=byte_vocabulary(tokenizer) if byte_level else None,
        )

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of text that one token can stand for at most: text of ``n`` bytes has at least ``n / this`` tokens."""
        if self._token_bytes is not None:
            return max(map(len, self._token_bytes.values()))
        return max(len(token.encode()) for token in self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        """How many tokens the tokenizer knows; a model's own vocabulary may be padded beyond it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a plain prompt; ``special``: with what the model wants around any text (often a BOS token).

        ApiError for text that is not valid Unicode: JSON can spell lone surrogates.
        """
        return self._encode(text, add_special_tokens=special)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The tokens of a conversation up to where the assistant answers; ApiError when the template refuses it."""
        return self._encode(self._template.render(messages, tools, arguments), add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to a text; a special token's name; nothing for an id that is no token."""
        known = None if self._token_bytes is None else self._token_bytes.get(token_id)
        if known is not None:
            return known
        token = self._tokenizer.id_to_token(token_id) or ""
        byte = _BYTE_TOKEN.fullmatch(token)
        return token.replace(_SPACE, " ").encode() if byte is None else bytes.fromhex(byte[1])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens that are all there, special tokens left out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for an answer that follows ``prompt``."""
        if self._token_bytes is not None:
            return ByteDetokenizer(self._token_bytes)
        return WindowDetokenizer(self._tokenizer, prompt)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as wrong:
            message = f"the text is not valid Unicode: {wrong.reason} at character {wrong.start}"
            raise ApiError("invalid_request", message) from wrong
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
