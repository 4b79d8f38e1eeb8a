"""SGLang's form of ``/generate``: ``text`` or ``input_ids``, and the rest in ``sampling_params``. Pure.

A body in this form is turned into one in the form that the other endpoints have, so that every field has one meaning
and one check. ``sampling_params`` may be a list with the same parameters for each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdcore.config.spelling import closest
from pdcore.engine.fields import Body, boolean, integer, mapping, wrong
from pdcore.engine.prompts import Prompt, completion_prompts, prompt_list
from pdcore.engine.unsupported import UNSUPPORTED
from pdcore.errors import ApiError

DEFAULT_TOKENS: Final = 128
MARKS: Final = ("text", "input_ids", "sampling_params")
_OWN_NAMES: Final[Mapping[str, str]] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}

_KNOWN: Final = (
    frozenset(_OWN_NAMES)
    | UNSUPPORTED
    | {
        *(
            "max_tokens",
            "max_completion_tokens",
            "min_tokens",
            "seed",
            "n",
            "best_of",
            "stop",
            "stop_token_ids",
        ),
        *("ignore_eos", "temperature", "top_p", "top_k", "min_p", "logit_bias"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs"),
    }
)
"""What ``sampling_params`` may hold: a parameter that nobody knows would change nothing, and nobody would see it."""


def is_form(body: Body) -> bool:
    """Whether ``body`` is in this form rather than in our own."""
    return any(body.get(name) is not None for name in MARKS)


def prompts(body: Body, vocab_size: int) -> tuple[Prompt, ...]:
    """The prompts of ``body``; ApiError 400 unless exactly one field has them."""
    given = [name for name in ("prompt", "text", "input_ids") if body.get(name) is not None]
    if len(given) != 1:
        raise wrong("text", f"must be given, or input_ids, and only one of them; got {given or 'neither'}")
    (name,) = given
    value = body[name]
    if name == "prompt":
        return completion_prompts(body, vocab_size)
    if isinstance(value, str) and name == "text" and value:
        return (value,)
    if not isinstance(value, list):
        raise wrong(name, "must be a prompt that is not empty, or a list of them", value)
    found = prompt_list(name, value, vocab_size)
    if not all(isinstance(prompt, str) == (name == "text") for prompt in found):
        raise wrong(name, f"must hold {'strings' if name == 'text' else 'token ids'} only")
    return found


def as_own(body: Body, prompt_count: int) -> Body:
    """The same request in our own form. ApiError 400 for what this form may say and this engine cannot do."""
    if body.get("logprob_start_len") not in (None, -1):
        raise wrong(
            "logprob_start_len", "asks for something this engine does not support", body["logprob_start_len"]
        )
    own: dict[str, object] = {"max_tokens": DEFAULT_TOKENS}
    for name, value in _parameters(body, prompt_count).items():
        if value is not None:
            if name not in _KNOWN:
                raise wrong(
                    f"sampling_params.{name[:64]}",
                    f"is nothing that this engine knows{closest(name, _KNOWN)}",
                )
            own[_OWN_NAMES.get(name, name)] = value
    if body.get("return_logprob") is not None or body.get("top_logprobs_num") is not None:
        own["logprobs"] = _logprobs(body)
    kept = ("model", "stream", "resume", "n", "seed")
    return {**own, **{name: body[name] for name in kept if body.get(name) is not None}}


def in_its_words(error: ApiError, body: Body) -> ApiError:
    """``error`` about a field of our own form, by the name that ``body`` has for it."""
    own = error.param or ""
    theirs = next((name for name, ours in _OWN_NAMES.items() if ours == own), own)
    given = body.get("sampling_params")
    params = given[0] if isinstance(given, list) and given else given
    if own == "logprobs":
        theirs = "top_logprobs_num"
    elif isinstance(params, dict) and theirs in params:
        theirs = f"sampling_params.{theirs}"
    message = error.message.replace(own, theirs, 1)
    return ApiError(error.code, message, param=theirs or None)


def _parameters(body: Body, prompt_count: int) -> Body:
    given = body.get("sampling_params")
    if not isinstance(given, list):
        return mapping(body, "sampling_params")
    if len(given) != prompt_count:
        raise wrong("sampling_params", f"has {len(given)} entries for {prompt_count} prompts")
    for place, one in enumerate(given):
        if not isinstance(one, dict):
            raise wrong(f"sampling_params[{place}]", "must be an object", one)
        if one != given[0]:
            raise wrong(f"sampling_params[{place}]", "differs from the first: all prompts are sampled alike")
    return given[0] if given else {}


def _logprobs(body: Body) -> int | bool:
    many = integer(body, "top_logprobs_num", 0, 20)
    return (many or 0) if boolean(body, "return_logprob") else False
