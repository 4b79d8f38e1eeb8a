"""Log probabilities of an answer's tokens: token ids become text and bytes, and then what each endpoint shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdcore.engine.transfer.orders import TokenLogprobs

Json = dict[str, object]
TokenBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that was, or could have been, chosen. ``raw`` is its own part of the text, maybe half a character."""

    token_id: int
    raw: bytes
    logprob: float

    @property
    def text(self) -> str:
        """``raw`` as text; what is no whole character is U+FFFD."""
        return self.raw.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Scored:
    """One token of an answer; ``offset`` is how many characters the texts of the tokens before it have."""

    chosen: Alternative
    top: tuple[Alternative, ...]
    offset: int


class Scorer:
    """Scores the tokens of one answer, in order."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._offset = 0

    def score(self, token_id: int, logprobs: TokenLogprobs) -> Scored:
        """The next token."""
        chosen = Alternative(token_id, self._token_bytes(token_id), logprobs.logprob)
        top = tuple(Alternative(other, self._token_bytes(other), value) for other, value in logprobs.top)
        scored = Scored(chosen, top, self._offset)
        self._offset += len(chosen.text)
        return scored

    def skip(self, token_ids: Sequence[int]) -> None:
        """Tokens that were scored elsewhere."""
        self._offset += sum(len(self._token_bytes(token).decode(errors="replace")) for token in token_ids)


def chat_logprobs(scored: Sequence[Scored]) -> Json:
    """As chats show them."""
    content = [
        {**_chat_token(one.chosen), "top_logprobs": [_chat_token(other) for other in one.top]}
        for one in scored
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: Alternative) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def completion_logprobs(scored: Sequence[Scored]) -> Json:
    """As completions show them; the chosen token is among the likeliest even when it was none of them."""
    return {
        "text_offset": [one.offset for one in scored],
        "token_logprobs": [one.chosen.logprob for one in scored],
        "tokens": [one.chosen.text for one in scored],
        "top_logprobs": [_by_text((*one.top, one.chosen)) for one in scored],
    }


def _by_text(tokens: Sequence[Alternative]) -> dict[str, float]:
    """Of tokens with the same text, which halves of characters may have, the likeliest counts."""
    found: dict[str, float] = {}
    for token in tokens:
        found[token.text] = max(token.logprob, found.get(token.text, token.logprob))
    return found


def sglang_logprobs(scored: Sequence[Scored]) -> Json:
    """As SGLang shows them: (log probability, token id, text)."""
    return {
        "output_token_logprobs": [_triple(one.chosen) for one in scored],
        "output_top_logprobs": [[_triple(other) for other in one.top] for one in scored],
    }


def _triple(token: Alternative) -> list[object]:
    return [token.logprob, token.token_id, token.text]
