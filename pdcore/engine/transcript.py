"""The text life of one request: token ids in, text out, until a stop. Pure but for the detokeniser's own state.

Tokens are taken one at a time, so that text, usage and finish reason do not depend on how many tokens happened to
arrive together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pdcore.engine.model.stop_strings import StopStrings
from pdcore.engine.openai import Usage


class Detokenizing(Protocol):
    """Token ids to text; holds back what is not yet a whole character."""

    def push(self, token_ids: Sequence[int], /) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """New text that may be sent. ``finish_reason`` is set on the last one; it is ``stop`` or ``length``."""

    text: str
    finish_reason: str | None


class Transcript:
    """Feed it every output of a request in order; after a piece with a finish reason it takes no more."""

    def __init__(
        self, detokenizer: Detokenizing, stops: StopStrings, *, prompt_tokens: int, silent_ids: frozenset[int]
    ) -> None:
        """``silent_ids`` end a request without being part of its text."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._prompt_tokens = prompt_tokens
        self._silent_ids = silent_ids
        self._completion_tokens = 0

    @property
    def usage(self) -> Usage:
        """Tokens so far; a token that completed a stop string is counted, later ones of its batch are not."""
        return Usage(prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens)

    def push(self, token_ids: Sequence[int], finish_reason: str | None) -> Piece:
        """Take new tokens; ``finish_reason`` comes from the rank with its last ones."""
        emitted = ""
        for place, token in enumerate(token_ids):
            self._completion_tokens += 1
            last = finish_reason is not None and place == len(token_ids) - 1
            if last and finish_reason == "stop" and token in self._silent_ids:
                break
            text, stopped = self._stops.push(self._detokenizer.push((token,)))
            emitted += text
            if stopped:
                return Piece(emitted, "stop")
        if finish_reason is None:
            return Piece(emitted, None)
        return self._finish(emitted, finish_reason)

    def _finish(self, emitted: str, finish_reason: str) -> Piece:
        text, stopped = self._stops.push(self._detokenizer.flush())
        emitted += text
        if stopped:
            return Piece(emitted, "stop")
        return Piece(emitted + self._stops.flush(), finish_reason)
