"""What a client may ask for: bodies of the three generation endpoints, parsed and refused. Pure.

Unknown fields are ignored. A known field that this engine cannot honour is refused by name, unless its value asks
for nothing (``echo: false``). Every refusal is an :class:`~pdcore.errors.ApiError` that names the field, also in its
``param``, and the value. ``null`` means "not given" for every field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from pdcore.engine import sglang
from pdcore.engine.fields import (
    Body,
    boolean,
    integer,
    kind_of,
    listed,
    mapping,
    number,
    text,
    token_ids,
    wrong,
)
from pdcore.engine.messages import Sampling
from pdcore.engine.prompts import LONGEST_NAME, Conversation, Prompt, completion_prompts, conversation
from pdcore.engine.resumption import Resumption, resumption
from pdcore.engine.transfer.orders import MAX_TOP_LOGPROBS
from pdcore.engine.unsupported import refuse_unsupported
from pdcore.errors import ApiError

Api = Literal["chat", "completions", "generate"]

MOST_STOPS: Final = 4
LONGEST_STOP: Final = 256
MOST_STOP_TOKEN_IDS: Final = 16
MOST_BIASES: Final = 1024
MOST_SAMPLES: Final = 128
MOST_ITEMS: Final = 1024
MOST_TOKENS: Final = 1 << 24
COMPLETIONS_DEFAULT_TOKENS: Final = 16
SEED_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request for text: ``samples`` answers for each of ``prompts``, all sampled alike but for their seeds.

    ``model`` None: the engine's own. ``max_tokens`` None: see :meth:`token_budget`. ``seed`` None: nobody cares;
    otherwise 0 … 2^63-1, and the one in ``sampling`` means nothing. ``is_sglang``: asked, and to be answered, in the
    form of SGLang's ``/generate``.
    """

    api: Api
    model: str | None
    prompts: tuple[Prompt, ...]
    samples: int
    max_tokens: int | None
    min_tokens: int
    sampling: Sampling
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    is_sglang: bool = False
    resume: Resumption | None = None

    @property
    def items(self) -> int:
        """How many answers: one for each (prompt, sample)."""
        return len(self.prompts) * self.samples

    def field_of(self, prompt: int) -> str:
        """Where the body has that prompt, for an error."""
        if isinstance(self.prompts[prompt], Conversation):
            return "messages"
        name = "prompt"
        if self.is_sglang:
            name = "text" if isinstance(self.prompts[prompt], str) else "input_ids"
        return name if len(self.prompts) == 1 else f"{name}[{prompt}]"

    def token_budget(self, prompt_tokens: int, context_length: int, room_for: int, *, field: str) -> int:
        """How many tokens may be generated. ApiError 400 when ``field`` and ``max_tokens`` exceed the context.

        Without ``max_tokens`` a chat may fill the context, the others get 16 tokens; neither more than ``room_for``.
        """
        left = context_length - prompt_tokens
        wanted = 1 if self.max_tokens is None else self.max_tokens
        if wanted > left:
            asked = "" if self.max_tokens is None else f" and max_tokens is {self.max_tokens}"
            raise ApiError(
                "context_length_exceeded",
                f"the context is {context_length} tokens long, but {field} has {prompt_tokens}{asked}",
                param=field,
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
    refuse_unsupported(body)
    if api != "generate" or not sglang.is_form(body):
        return _parse(api, body, _prompts(api, body, vocab_size), vocab_size)
    prompts = sglang.prompts(body, vocab_size)
    own = sglang.as_own(body, len(prompts))
    try:
        refuse_unsupported(own)
        return _parse(api, own, prompts, vocab_size, is_sglang=True)
    except ApiError as error:
        raise sglang.in_its_words(error, body) from None


def _parse(
    api: Api, body: Body, prompts: tuple[Prompt, ...], vocab_size: int, *, is_sglang: bool = False
) -> GenerationRequest:
    max_tokens = _max_tokens(body)
    request = GenerationRequest(
        api=api,
        model=text(body, "model", LONGEST_NAME),
        prompts=prompts,
        samples=_samples(body, len(prompts)),
        max_tokens=max_tokens,
        min_tokens=_min_tokens(body, max_tokens),
        sampling=_sampling(api, body, vocab_size),
        seed=_seed(body),
        stop=_stop(body),
        stop_token_ids=_stop_token_ids(body, vocab_size),
        ignore_eos=boolean(body, "ignore_eos"),
        stream=boolean(body, "stream"),
        include_usage=boolean(mapping(body, "stream_options"), "include_usage"),
        is_sglang=is_sglang,
        resume=resumption(body, vocab_size),
    )
    if request.resume is not None:
        _check_resumable(request)
    return request


def _prompts(api: Api, body: Body, vocab_size: int) -> tuple[Prompt, ...]:
    for name in ("prompt", "text", "input_ids") if api == "chat" else ("messages", "text", "input_ids"):
        value = body.get(name)
        if value is not None and value != {}:  # newer OpenAI clients say how ``text`` is to be formatted
            raise wrong(name, f"is not a field of this endpoint ({api})")
    return (conversation(body),) if api == "chat" else completion_prompts(body, vocab_size)


def _check_resumable(request: GenerationRequest) -> None:
    if request.is_sglang:
        raise wrong("resume", "is not for this form of /generate, whose events repeat the whole text")
    if request.items > 1:
        raise wrong("resume", f"is for one answer, and this request asks for {request.items}")
    if not request.stream:
        raise wrong("resume", "is for streams: what is not streamed is asked for again")


def _samples(body: Body, prompts: int) -> int:
    samples = integer(body, "n", 1, MOST_SAMPLES) or 1
    best_of = integer(body, "best_of", 1, MOST_SAMPLES)
    if best_of not in (None, samples):
        raise wrong("best_of", f"must be n ({samples}): only answers that are sent back are made", best_of)
    if prompts * samples > MOST_ITEMS:
        raise wrong("n", f"asks for {prompts * samples} answers; at most {MOST_ITEMS} are supported")
    return samples


# choosing tokens


def _sampling(api: Api, body: Body, vocab_size: int) -> Sampling:
    temperature = number(body, "temperature", 0, 2)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=_positive(body, "top_p", 1, 1.0),
        top_k=max(0, integer(body, "top_k", -1, MOST_TOKENS) or 0),
        min_p=number(body, "min_p", 0, 1) or 0.0,
        presence_penalty=number(body, "presence_penalty", -2, 2) or 0.0,
        frequency_penalty=number(body, "frequency_penalty", -2, 2) or 0.0,
        repetition_penalty=_positive(body, "repetition_penalty", 10, 1.0),
        bias=_bias(body, vocab_size),
        top_logprobs=_top_logprobs(api, body),
        seed=0,
    )


def _positive(body: Body, name: str, high: float, default: float) -> float:
    value = number(body, name, 0, high)
    if value == 0:
        raise wrong(name, f"must be greater than 0 and at most {high:g}", value)
    return default if value is None else value


def _bias(body: Body, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = mapping(body, "logit_bias")
    if len(given) > MOST_BIASES:
        raise wrong("logit_bias", f"holds {len(given)} token ids; at most {MOST_BIASES} are supported")
    return tuple((_bias_id(name, vocab_size), number(given, name, -100, 100) or 0.0) for name in given)


def _bias_id(name: str, vocab_size: int) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 12 and int(name) < vocab_size):
        raise wrong("logit_bias", f"holds a key that is no token id from 0 to {vocab_size - 1}", name)
    return int(name)


def _top_logprobs(api: Api, body: Body) -> int | None:
    """Chat says whether and how many in two fields, the others say how many."""
    if api != "chat":
        if body.get("top_logprobs") not in (None, 0):
            raise wrong(
                "top_logprobs", "is a field of chats; here logprobs says how many", body["top_logprobs"]
            )
        wanted = body.get("logprobs")
        return None if wanted is False else integer(body, "logprobs", 0, MAX_TOP_LOGPROBS)
    many = integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if boolean(body, "logprobs"):
        return many or 0
    if many:
        raise wrong("top_logprobs", "needs logprobs set to true", many)
    return None


# limits


def _max_tokens(body: Body) -> int | None:
    newer = integer(body, "max_completion_tokens", 1, MOST_TOKENS)
    older = integer(body, "max_tokens", 1, MOST_TOKENS)
    if newer is not None and older is not None and newer != older:
        raise wrong("max_tokens", f"is {older}, but max_completion_tokens is {newer}")
    return older if newer is None else newer


def _min_tokens(body: Body, max_tokens: int | None) -> int:
    fewest = integer(body, "min_tokens", 0, MOST_TOKENS) or 0
    if max_tokens is not None and fewest > max_tokens:
        raise wrong("min_tokens", f"is {fewest}, but max_tokens is {max_tokens}")
    return fewest


def _seed(body: Body) -> int | None:
    seed = integer(body, "seed", -(1 << 63), (1 << 64) - 1)
    return None if seed is None else seed & ((1 << SEED_BITS) - 1)


def _stop(body: Body) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops: Sequence[object] = value if isinstance(value, list) else [value]
    if len(stops) > MOST_STOPS:
        raise wrong("stop", f"holds {len(stops)} strings; at most {MOST_STOPS} are supported")
    return tuple(_stop_string(stop) for stop in stops)


def _stop_string(stop: object) -> str:
    if not isinstance(stop, str):
        raise wrong("stop", "must be a string or a list of strings", stop)
    if not 0 < len(stop) <= LONGEST_STOP:
        raise wrong("stop", f"must hold strings of 1 to {LONGEST_STOP} characters", stop)
    return stop


def _stop_token_ids(body: Body, vocab_size: int) -> tuple[int, ...]:
    return token_ids("stop_token_ids", listed(body, "stop_token_ids", MOST_STOP_TOKEN_IDS), vocab_size)
