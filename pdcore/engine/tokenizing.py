"""``/tokenize`` and ``/detokenize``: text and token ids of this engine's model, without generating anything. Pure.

The fields are those of vLLM and SGLang: ``prompt`` (or ``text``), or ``messages`` for what a chat becomes; ``tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdcore.engine.engine import Engine, Texts
from pdcore.engine.fields import Body, boolean, text, token_ids, wrong
from pdcore.engine.jobs import check_model
from pdcore.engine.prompts import LONGEST_NAME, conversation

Json = dict[str, object]

MOST_TEXTS: Final = 1024


def tokenize(engine: Engine, body: Body) -> Json:
    """The tokens of text, of each of several texts, or of a conversation. ApiError 400 naming the field."""
    check_model(engine.state, text(body, "model", LONGEST_NAME))
    given = [name for name in ("prompt", "text", "messages") if body.get(name) is not None]
    if len(given) != 1:
        raise wrong(
            "prompt", f"must be given, or text, or messages, and only one of them; got {given or 'none'}"
        )
    tokens = _tokens(engine.texts, body, given[0])
    document: Json = {"tokens": tokens, "count": _count(tokens), "max_model_len": engine.state.context_length}
    if boolean(body, "return_token_strs"):
        document["token_strs"] = _strings(engine.texts, tokens)
    return document


def _tokens(texts: Texts, body: Body, name: str) -> list[int] | list[list[int]]:
    if name == "messages":
        chat = conversation(body)
        return texts.encode_chat(chat.messages, chat.tools, chat.arguments)
    value, special = body[name], body.get("add_special_tokens") is None or boolean(body, "add_special_tokens")
    if isinstance(value, str):
        return texts.encode(value, special=special)
    if not isinstance(value, list):
        raise wrong(name, "must be a string or a list of strings", value)
    if len(value) > MOST_TEXTS:
        raise wrong(name, f"holds {len(value)} texts; at most {MOST_TEXTS} are supported")
    return [
        texts.encode(_string(f"{name}[{place}]", one), special=special) for place, one in enumerate(value)
    ]


def detokenize(engine: Engine, body: Body) -> Json:
    """The text of token ids, or of each of several lists of them; under both names that clients look for it."""
    check_model(engine.state, text(body, "model", LONGEST_NAME))
    value = body.get("tokens")
    if not isinstance(value, list):
        raise wrong("tokens", "must be a list of token ids, or a list of such lists", value)
    if value and all(isinstance(one, list) for one in value):
        if len(value) > MOST_TEXTS:
            raise wrong("tokens", f"holds {len(value)} lists; at most {MOST_TEXTS} are supported")
        found: object = [
            engine.texts.decode(token_ids(f"tokens[{place}]", one, engine.vocab_size))
            for place, one in enumerate(value)
        ]
    else:
        found = engine.texts.decode(token_ids("tokens", value, engine.vocab_size))
    return {"prompt": found, "text": found}


def _count(tokens: Sequence[object]) -> int | list[int]:
    if tokens and isinstance(tokens[0], list):
        return [len(one) for one in tokens if isinstance(one, list)]
    return len(tokens)


def _strings(texts: Texts, tokens: Sequence[object]) -> list[object]:
    return [_strings(texts, one) if isinstance(one, list) else _shown(texts, one) for one in tokens]


def _shown(texts: Texts, token: object) -> str:
    assert isinstance(token, int)
    return texts.token_bytes(token).decode(errors="replace")


def _string(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(place, "must be a string", value)
    return value
