"""What a client may ask for: bodies of the three generation endpoints, parsed and refused. Pure.

Unknown fields are ignored. A known field that this engine cannot honour is refused by name, unless its value asks
for nothing (``n: 1``, ``logprobs: false``). Every refusal is an :class:`~pdcore.errors.ApiError` whose ``param`` is the
field. ``null`` means "not given" for every field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from pdcore.engine.fields import Body, boolean, integer, kind_of, number, shortened, text, wrong
from pdcore.errors import ApiError

Api = Literal["chat", "completions", "generate"]

MOST_STOPS: Final = 4
LONGEST_STOP: Final = 256
MOST_STOP_TOKEN_IDS: Final = 16
MOST_MESSAGES: Final = 4096
MOST_TOKENS: Final = 1 << 24
LONGEST_NAME: Final = 256
COMPLETIONS_DEFAULT_TOKENS: Final = 16
SEED_BITS: Final = 63
ROLES: Final = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat: each message has ``role`` and ``content``, both text."""

    messages: tuple[Mapping[str, str], ...]


Prompt = str | tuple[int, ...] | Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request for text. ``model`` None: the engine's own. ``max_tokens`` None: see :meth:`token_budget`.

    ``seed`` None: nobody cares; otherwise 0 … 2^63-1. ``top_k`` 0 is no limit.
    """

    api: Api
    model: str | None
    prompt: Prompt
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool

    def token_budget(self, prompt_tokens: int, context_length: int, room_for: int) -> int:
        """How many tokens may be generated. ApiError 400 when prompt and ``max_tokens`` exceed the context.

        Without ``max_tokens`` a chat may fill the context, the others get 16 tokens; neither more than ``room_for``.
        """
        left = context_length - prompt_tokens
        wanted = 1 if self.max_tokens is None else self.max_tokens
        if wanted > left:
            asked = "" if self.max_tokens is None else f" and max_tokens is {self.max_tokens}"
            raise ApiError(
                "context_length_exceeded",
                f"the context is {context_length} tokens long, but the prompt has {prompt_tokens}{asked}",
                param="messages" if self.api == "chat" else "prompt",
            )
        if self.max_tokens is not None:
            return self.max_tokens
        default = left if self.api == "chat" else COMPLETIONS_DEFAULT_TOKENS
        return max(1, min(default, left, room_for - prompt_tokens))


def decode_body(raw: bytes) -> Body:
    """The JSON object in ``raw``, or ApiError 400."""
    if not raw.strip():
        raise ApiError("invalid_request", "the body is empty")
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise ApiError("invalid_request", f"the body is not valid JSON: {wrong}") from None
    except RecursionError:
        raise ApiError("invalid_request", "the body is nested too deeply") from None
    if not isinstance(document, dict):
        raise ApiError("invalid_request", f"the body must be a JSON object, not {kind_of(document)}")
    return document


def parse(api: Api, body: Body, *, vocab_size: int) -> GenerationRequest:
    """The request in ``body``, or ApiError 400 naming the field. Token ids must be below ``vocab_size``."""
    _refuse_unsupported(api, body)
    temperature = number(body, "temperature", 0, 2)
    top_p = number(body, "top_p", 0, 1)
    if top_p == 0:
        raise wrong("top_p", "must be greater than 0 and at most 1")
    return GenerationRequest(
        api=api,
        model=_model(body),
        prompt=_messages(body) if api == "chat" else _prompt(body, vocab_size),
        max_tokens=_max_tokens(body),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(0, integer(body, "top_k", -1, MOST_TOKENS) or 0),
        seed=_seed(body),
        stop=_stop(body),
        stop_token_ids=_stop_token_ids(body, vocab_size),
        ignore_eos=boolean(body, "ignore_eos"),
        stream=boolean(body, "stream"),
        include_usage=_include_usage(body),
    )


def _model(body: Body) -> str | None:
    return text(body, "model", LONGEST_NAME)


# what this engine cannot do, field by field: the values that ask for nothing

_Neutral = Callable[[object], bool]


def _is_one_of(*values: object) -> _Neutral:
    def neutral(value: object) -> bool:
        return any(type(value) is type(v) and value == v for v in values)

    return neutral


def _is_number(wanted: float) -> _Neutral:
    def neutral(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == wanted

    return neutral


def _is_empty(value: object) -> bool:
    return isinstance(value, list | dict | str) and not value


def _is_text_format(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


_UNSUPPORTED: Final[Mapping[str, _Neutral]] = {
    "n": _is_one_of(1),
    "best_of": _is_one_of(1),
    "logprobs": _is_one_of(False),
    "top_logprobs": _is_one_of(0),
    "prompt_logprobs": _is_one_of(False),
    "echo": _is_one_of(False),
    "suffix": _is_empty,
    "tools": _is_empty,
    "tool_choice": _is_one_of("none", "auto"),
    "functions": _is_empty,
    "function_call": _is_one_of("none", "auto"),
    "response_format": _is_text_format,
    "presence_penalty": _is_number(0),
    "frequency_penalty": _is_number(0),
    "repetition_penalty": _is_number(1),
    "logit_bias": _is_empty,
    "min_tokens": _is_one_of(0),
    "min_p": _is_number(0),
    "use_beam_search": _is_one_of(False),
    "modalities": _is_one_of(["text"]),
    "audio": _is_empty,
    "web_search_options": _is_empty,
    "guided_json": _is_empty,
    "guided_regex": _is_empty,
    "guided_choice": _is_empty,
    "guided_grammar": _is_empty,
    "structured_outputs": _is_empty,
    "sampling_params": _is_empty,
    "text": _is_empty,
    "input_ids": _is_empty,
}


def _refuse_unsupported(api: Api, body: Body) -> None:
    for name, neutral in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and not neutral(value):
            raise wrong(name, "asks for something this engine does not support")
    for name in ("prompt",) if api == "chat" else ("messages",):
        if body.get(name) is not None:
            raise wrong(name, f"is not a field of this endpoint ({api})")


# prompts


def _prompt(body: Body, vocab_size: int) -> str | tuple[int, ...]:
    value = body.get("prompt")
    if value is None:
        raise wrong("prompt", "is missing")
    if isinstance(value, str):
        return _non_empty(value)
    if not isinstance(value, list):
        raise wrong("prompt", f"must be a string or a list of token ids, not {kind_of(value)}")
    if not value:
        raise wrong("prompt", "is empty")
    if all(isinstance(item, str) or isinstance(item, list) for item in value):
        return _only_prompt(value, vocab_size)
    return _token_ids("prompt", value, vocab_size)


def _only_prompt(prompts: list[object], vocab_size: int) -> str | tuple[int, ...]:
    if len(prompts) > 1:
        raise wrong("prompt", f"holds {len(prompts)} prompts; one per request is supported")
    only = prompts[0]
    if isinstance(only, str):
        return _non_empty(only)
    assert isinstance(only, list)
    if not only:
        raise wrong("prompt", "is empty")
    return _token_ids("prompt", only, vocab_size)


def _non_empty(prompt: str) -> str:
    if not prompt:
        raise wrong("prompt", "is empty")
    return prompt


def _token_ids(name: str, values: list[object], vocab_size: int) -> tuple[int, ...]:
    ids: list[int] = []
    for place, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong(name, f"holds {kind_of(value)} at {place}; a token id is an integer")
        if not 0 <= value < vocab_size:
            raise wrong(
                name, f"holds {shortened(value)} at {place}; token ids are from 0 to {vocab_size - 1}"
            )
        ids.append(value)
    return tuple(ids)


def _messages(body: Body) -> Conversation:
    value = body.get("messages")
    if value is None:
        raise wrong("messages", "is missing")
    if not isinstance(value, list):
        raise wrong("messages", f"must be a list, not {kind_of(value)}")
    if not 1 <= len(value) <= MOST_MESSAGES:
        raise wrong("messages", f"must hold 1 to {MOST_MESSAGES} messages, not {len(value)}")
    return Conversation(tuple(_message(f"messages[{i}]", item) for i, item in enumerate(value)))


def _message(place: str, value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise wrong(place, f"must be an object, not {kind_of(value)}")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    if value.get("tool_calls"):
        raise wrong(f"{place}.tool_calls", "asks for something this engine does not support")
    content = _content(f"{place}.content", value.get("content"))
    if not content and role != "assistant":
        raise wrong(f"{place}.content", "is empty")
    return {"role": role, "content": content}


def _content(place: str, value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise wrong(place, f"must be a string or a list of text parts, not {kind_of(value)}")
    return "\n".join(_text_part(f"{place}[{i}]", part) for i, part in enumerate(value))


def _text_part(place: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise wrong(place, "is no text part; only text is supported")
    content = part.get("text")
    if not isinstance(content, str):
        raise wrong(f"{place}.text", f"must be a string, not {kind_of(content)}")
    return content


# limits


def _max_tokens(body: Body) -> int | None:
    newer = integer(body, "max_completion_tokens", 1, MOST_TOKENS)
    older = integer(body, "max_tokens", 1, MOST_TOKENS)
    if newer is not None and older is not None and newer != older:
        raise wrong("max_tokens", f"is {older}, but max_completion_tokens is {newer}")
    return older if newer is None else newer


def _seed(body: Body) -> int | None:
    seed = integer(body, "seed", -(1 << 63), (1 << 64) - 1)
    return None if seed is None else seed & ((1 << SEED_BITS) - 1)


def _stop(body: Body) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops = value if isinstance(value, list) else [value]
    if len(stops) > MOST_STOPS:
        raise wrong("stop", f"holds {len(stops)} strings; at most {MOST_STOPS} are supported")
    for stop in stops:
        if not isinstance(stop, str):
            raise wrong("stop", f"must be a string or a list of strings, not {kind_of(stop)}")
        if not 0 < len(stop) <= LONGEST_STOP:
            raise wrong("stop", f"must hold strings of 1 to {LONGEST_STOP} characters")
    return tuple(stops)


def _stop_token_ids(body: Body, vocab_size: int) -> tuple[int, ...]:
    value = body.get("stop_token_ids")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong("stop_token_ids", f"must be a list, not {kind_of(value)}")
    if len(value) > MOST_STOP_TOKEN_IDS:
        raise wrong("stop_token_ids", f"holds {len(value)} ids; at most {MOST_STOP_TOKEN_IDS} are supported")
    return _token_ids("stop_token_ids", value, vocab_size)


def _include_usage(body: Body) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise wrong("stream_options", f"must be an object, not {kind_of(options)}")
    return boolean(options, "include_usage")
