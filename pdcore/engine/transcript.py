"""The text life of one answer: token ids in, text out, until a stop. Pure but for the detokeniser's own state.

Tokens are taken one at a time, so that text, usage and finish reason do not depend on how many tokens happened to
arrive together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pdcore.engine.logprobs import Scored, Scorer
from pdcore.engine.model.stop_strings import StopStrings
from pdcore.engine.transfer.orders import TokenLogprobs
from pdcore.errors import ApiError


class Detokenizing(Protocol):
    """Token ids to text; holds back what is not yet a whole character."""

    def push(self, token_ids: Sequence[int], /) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """New text that may be sent. ``finish_reason`` is set on the last one; it is ``stop`` or ``length``.

    ``token_ids`` are what was counted since the last piece, and ``scored`` the same with their log probabilities, if
    these were asked for. Text may be held back, so that it need not be theirs.
    """

    text: str
    finish_reason: str | None
    token_ids: tuple[int, ...] = ()
    scored: tuple[Scored, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """What ends an answer: ``silent_ids`` without being part of its text, and no stop string in its first
    ``min_tokens`` tokens."""

    silent_ids: frozenset[int]
    min_tokens: int = 0


class Transcript:
    """Feed it every output of a request in order; after a piece with a finish reason it takes no more."""

    def __init__(
        self,
        detokenizer: Detokenizing,
        stops: StopStrings,
        endings: Endings,
        *,
        scorer: Scorer | None = None,
    ) -> None:
        """``scorer`` is there iff log probabilities are wanted."""
        self._detokenizer = detokenizer
        self._stops = stops
        self._endings = endings
        self._scorer = scorer
        self._unsaid = 0
        self.completion_tokens = 0
        """So far; a token that completed a stop string is counted, later ones of its batch are not."""

    def replay(self, token_ids: Sequence[int], finish_reason: str | None, emitted_chars: int) -> Piece:
        """Take tokens that were generated elsewhere; the client has ``emitted_chars`` characters of their text.

        ApiError 400 when their text is shorter than that.
        """
        if self._scorer is not None:
            self._scorer.skip(token_ids)
        self._unsaid = emitted_chars
        piece = self._take(token_ids, finish_reason)
        if self._unsaid:
            message = f"resume.emitted_chars is {emitted_chars}, {self._unsaid} more than the text of output_ids has"
            raise ApiError("invalid_request", message, param="resume.emitted_chars")
        return Piece(piece.text, piece.finish_reason)

    def push(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> Piece:
        """Take new tokens; ``finish_reason`` comes from the rank with its last ones, ``logprobs`` if wanted.

        ApiError 502 when they were wanted and have not come.
        """
        piece = self._take(token_ids, finish_reason)
        if self._scorer is None:
            return piece
        if len(logprobs) != len(token_ids):
            raise ApiError("prefill_failed", "the log probabilities of some tokens have not come")
        score = self._scorer.score
        scored = tuple(map(score, piece.token_ids, logprobs))
        return Piece(piece.text, piece.finish_reason, piece.token_ids, scored)

    def _take(self, token_ids: Sequence[int], finish_reason: str | None) -> Piece:
        emitted = ""
        for place, token in enumerate(token_ids):
            self.completion_tokens += 1
            last = finish_reason is not None and place == len(token_ids) - 1
            if last and finish_reason == "stop" and token in self._endings.silent_ids:
                break
            text, stopped = self._checked(self._detokenizer.push((token,)))
            emitted += text
            if stopped:
                return Piece(self._news(emitted), "stop", tuple(token_ids[: place + 1]))
        if finish_reason is not None:
            text, finish_reason = self._ending(finish_reason)
            emitted += text
        return Piece(self._news(emitted), finish_reason, tuple(token_ids))

    def _checked(self, text: str) -> tuple[str, bool]:
        if self.completion_tokens <= self._endings.min_tokens:
            return text, False
        return self._stops.push(text)

    def _ending(self, finish_reason: str) -> tuple[str, str]:
        """What was held back, and why the answer has ended."""
        text, stopped = self._checked(self._detokenizer.flush())
        return (text, "stop") if stopped else (text + self._stops.flush(), finish_reason)

    def _news(self, text: str) -> str:
        """What the client does not have of it."""
        if not self._unsaid:
            return text
        said = min(self._unsaid, len(text))
        self._unsaid -= said
        return text[said:]
