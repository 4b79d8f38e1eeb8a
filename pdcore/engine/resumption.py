"""Going on with an answer that another engine began: the engine's half of the resume contract. Pure.

A stream that broke off is asked for once more with ``resume`` in its body: what had been generated, and how much of the
text the client has. The engine computes prompt and output as one prompt, replays the output through detokeniser, stop
strings, penalties and usage, and sends what the client does not have, under the old id and without a new role. Noise is
keyed by position, so that the same seed goes on as it would have.

What a router must know for that, it asks for with the header ``x-pdcore-token-ids: 1``: the stream then has comment
lines, which go before the text that they became: ``: pdcore-prompt 1,2,3`` once, and ``: pdcore-ids 4,5``. The seed it
gives itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pdcore.engine.fields import Body, integer, listed, mapping, text, token_ids, wrong

TOKEN_IDS: Final = "x-pdcore-token-ids"
MOST_OUTPUT: Final = 1 << 20
LONGEST_ID: Final = 128
LATEST: Final = 1 << 40
SEED_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """``prompt`` None: the one in the body, made into tokens again. ``emitted_chars`` counts Unicode characters."""

    prompt: tuple[int, ...] | None
    output_ids: tuple[int, ...]
    id: str
    created: int
    emitted_chars: int
    seed: int


def resumption(body: Body, vocab_size: int) -> Resumption | None:
    """``resume`` in ``body``, None when it is not there; ApiError 400 naming the field in it that is wrong."""
    if body.get("resume") is None:
        return None
    given = mapping(body, "resume")
    fields = {f"resume.{name}": value for name, value in given.items()}
    prompt = listed(fields, "resume.prompt", MOST_OUTPUT)
    output = listed(fields, "resume.output_ids", MOST_OUTPUT)
    if not output:
        raise wrong("resume.output_ids", "is empty: there is nothing to go on with")
    return Resumption(
        prompt=token_ids("resume.prompt", prompt, vocab_size) if prompt else None,
        output_ids=token_ids("resume.output_ids", output, vocab_size),
        id=_needed("resume.id", text(fields, "resume.id", LONGEST_ID)),
        created=_needed_integer(fields, "resume.created", LATEST),
        emitted_chars=_needed_integer(fields, "resume.emitted_chars", LATEST),
        seed=_needed_integer(fields, "resume.seed", SEED_LIMIT),
    )


def prompt_comment(prompt: Sequence[int]) -> bytes:
    """What the tokens of the prompt are."""
    return b": pdcore-prompt " + _listed(prompt) + b"\n"


def output_comment(token_ids: Sequence[int]) -> bytes:
    """Which tokens the event that follows stands for."""
    return b": pdcore-ids " + _listed(token_ids) + b"\n"


def _listed(ids: Sequence[int]) -> bytes:
    return ",".join(map(str, ids)).encode()


def _needed_integer(fields: Body, name: str, high: int) -> int:
    value = integer(fields, name, 0, high)
    if value is None:
        raise wrong(name, "is missing")
    return value


def _needed(name: str, value: str | None) -> str:
    if value is None:
        raise wrong(name, "is missing")
    return value
