"""What the fields of a client's request may hold: one table, checked before any leg is touched.

Only wrong *types* and values that no engine could mean are refused here; limits of one engine (its context length,
what it does not support) are the engine's own 400. Fields without a row reach the engines unchanged. ``null`` means
"not given" everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeGuard

import msgspec

from pdcore.errors import ApiError

MAX_ROOM: Final = 2**63 - 1
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_SAMPLES: Final = 128
MAX_LOGPROBS: Final = 1000

Check = Callable[[object], str | None]
"""None, or what the value must be ("must be …")."""


def shown(value: object) -> str:
    """``value`` as an error message may repeat it: short, one line."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def refuse(param: str, why: str) -> ApiError:
    """The 400 for one field."""
    return ApiError("invalid_request", f"{param} {why}", param=param)


def decoded(name: str, raw: msgspec.Raw) -> object:
    """The value of one field; raises the 400 for what cannot be read."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise refuse(name, f"cannot be read: {wrong}") from wrong


def is_integer(value: object) -> TypeGuard[int]:
    """A JSON number without a fraction; true and false are none."""
    return type(value) is int


def integer(low: int, high: int) -> Check:
    """A whole number within ``low … high``."""
    want = f"must be a whole number from {low} to {high}"

    def check(value: object) -> str | None:
        return None if is_integer(value) and low <= value <= high else want

    return check


def number(low: float, high: float) -> Check:
    """A finite number within ``low … high``."""
    want = f"must be a number from {low:g} to {high:g}"

    def check(value: object) -> str | None:
        good = type(value) in (int, float) and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type,operator]
        return None if good else want

    return check


def at_least(low: int, beyond: int) -> Check:
    """A whole number from ``low`` on; one above ``beyond`` no engine takes. How much one engine takes it says itself."""

    def check(value: object) -> str | None:
        if not is_integer(value) or value < low:
            return f"must be a whole number from {low} on"
        return None if value <= beyond else "is more than any engine takes"

    return check


def about(low: float, high: float) -> Check:
    """A finite number; beyond ``low … high`` no engine takes it. Which of them one engine takes it says itself."""

    def check(value: object) -> str | None:
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            return "must be a number"
        return None if low <= value <= high else "is none that any engine takes"  # type: ignore[operator]

    return check


def boolean(value: object) -> str | None:
    """true or false."""
    return None if isinstance(value, bool) else "must be true or false"


def text(value: object) -> str | None:
    """A string that is not empty."""
    return None if isinstance(value, str) and value else "must be a string that is not empty"


def any_object(value: object) -> str | None:
    """A JSON object."""
    return None if isinstance(value, dict) else "must be an object"


def any_list(value: object) -> str | None:
    """A JSON list."""
    return None if isinstance(value, list) else "must be a list"


def stop(value: object) -> str | None:
    """A stop string, or a list of them."""
    strings = [value] if isinstance(value, str) else value
    good = isinstance(strings, list) and all(isinstance(one, str) and one for one in strings)
    return None if good else "must be a string or a list of strings, none of them empty"


def token_ids(value: object) -> str | None:
    """A list of at least one token id."""
    if not isinstance(value, list) or not value:
        return "must be a list of token ids that is not empty"
    good = all(type(one) is int and 0 <= one <= MAX_TOKEN_ID for one in value)
    return None if good else f"must hold whole numbers from 0 to {MAX_TOKEN_ID} only"


def objects(value: object) -> str | None:
    """A JSON object, or a list of them."""
    each = value if isinstance(value, list) else [value]
    return None if all(isinstance(one, dict) for one in each) else "must be an object, or a list of them"


def logprobs(value: object) -> str | None:
    """Whether (chat), or for how many of the likeliest tokens (completions)."""
    if isinstance(value, bool):
        return None
    if not is_integer(value) or value < 0:
        return "must be true, false or a whole number from 0 on"
    return None if value <= MAX_LOGPROBS else "is more than any engine takes"


TABLE: Final[Mapping[str, Check]] = {
    "model": text,
    "stream": boolean,
    "stream_options": any_object,
    "n": integer(1, MAX_SAMPLES),
    "best_of": integer(1, MAX_SAMPLES),
    "max_tokens": at_least(1, MAX_TOKEN_ID),
    "max_completion_tokens": at_least(1, MAX_TOKEN_ID),
    "min_tokens": at_least(0, MAX_TOKEN_ID),
    "temperature": about(0, 100),
    "top_p": number(0, 1),
    "top_k": at_least(-1, MAX_TOKEN_ID),
    "min_p": number(0, 1),
    "frequency_penalty": about(-100, 100),
    "presence_penalty": about(-100, 100),
    "repetition_penalty": about(0, 100),
    "seed": integer(-(2**63), 2**64 - 1),
    "stop": stop,
    "stop_token_ids": any_list,
    "ignore_eos": boolean,
    "echo": boolean,
    "logprobs": logprobs,
    "top_logprobs": at_least(0, MAX_LOGPROBS),
    "logit_bias": any_object,
    "response_format": any_object,
    "sampling_params": objects,
    "tools": any_list,
    "bootstrap_room": integer(1, MAX_ROOM),
    "bootstrap_host": text,
    "bootstrap_port": integer(1, 65535),
    "disagg_prefill_dp_rank": integer(0, 65535),
}

PLACEMENT: Final = ("bootstrap_room", "bootstrap_host", "bootstrap_port", "disagg_prefill_dp_rank")
"""The fields with which a client may say something about the placement; the router sets its own in every leg."""


def check_known(fields: Mapping[str, object]) -> None:
    """Raise the 400 for the first row that a value breaks; every field has a row."""
    wrong = [name for name, value in fields.items() if value is not None and TABLE[name](value) is not None]
    for name in TABLE if wrong else ():
        if name in wrong:
            raise refuse(name, f"{TABLE[name](fields[name])}, got {shown(fields[name])}")


def is_internal(name: str) -> bool:
    """True for fields by which engines find each other, in any spelling, that no client may send."""
    lowered = name.lower()
    if lowered in PLACEMENT:
        return name not in PLACEMENT
    return lowered in {"kv_transfer_params", "metaserver"} or lowered.startswith(("bootstrap_", "disagg_"))
