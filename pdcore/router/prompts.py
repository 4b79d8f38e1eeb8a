"""The prompts of a request: checked for each endpoint, and counted with their samples. Pure.

Every (prompt, sample) is an *item*: an answer of its own, and on its way from prefill to decode a room of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from pdcore.router.fields import MAX_SAMPLES, decoded, is_integer, refuse, token_ids

Fields = Mapping[str, msgspec.Raw]
Form = Literal["both", "texts", "token ids"]

MAX_ITEMS: Final = 1024
GENERATE: Final[Mapping[str, Form]] = {"prompt": "both", "text": "texts", "input_ids": "token ids"}


def count_items(prompts: int, fields: Fields, known: Mapping[str, object]) -> int:
    """Prompts times samples, within bounds; ``known`` holds the decoded fields of the table."""
    samples = _samples(prompts, known)
    best_of = known.get("best_of")
    if best_of is not None and best_of != samples:
        raise refuse("best_of", "other than n is not supported: only answers that are sent back are made")
    if prompts * samples > MAX_ITEMS:
        name = "n" if samples > 1 else next(name for name in GENERATE if name in fields)
        raise refuse(name, f"asks for {prompts * samples} answers, more than {MAX_ITEMS} in one request")
    return prompts * samples


def _samples(prompts: int, known: Mapping[str, object]) -> int:
    """How many answers each prompt gets: ``n``, which SGLang's ``/generate`` has in ``sampling_params``."""
    given = known.get("sampling_params")
    if isinstance(given, list) and len(given) != prompts:
        raise refuse("sampling_params", f"has {len(given)} entries for {prompts} prompts")
    params = given if isinstance(given, list) else [given]
    said = {_sample_count(one) for one in params if isinstance(one, dict)}
    top = known.get("n")
    if is_integer(top):
        said.add(top)
    if len(said) > 1:
        raise refuse("n", "must be the same for every prompt of a request")
    return said.pop() if said else 1


def _sample_count(params: Mapping[str, object]) -> int:
    value = params.get("n")
    if value is None:
        return 1
    if not is_integer(value) or not 1 <= value <= MAX_SAMPLES:
        raise refuse("n", f"must be a whole number from 1 to {MAX_SAMPLES}")
    return value


def count_messages(fields: Fields) -> int:
    """A chat has one prompt: its messages."""
    messages = decoded("messages", fields["messages"]) if "messages" in fields else None
    if not isinstance(messages, list) or not messages:
        raise refuse("messages", "must be a list of messages that is not empty")
    for place, message in enumerate(messages):
        _check_message(f"messages[{place}]", message)
    if not any(message.get("content") or message.get("tool_calls") for message in messages):
        others = "" if len(messages) == 1 else ", and no other message has any either"
        raise refuse("messages[0].content", f"is missing or empty{others}")
    return 1


def _check_message(param: str, message: object) -> None:
    if not isinstance(message, dict):
        raise refuse(param, "must be an object")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise refuse(f"{param}.role", "must be a string that is not empty")
    if content is not None and not isinstance(content, str | list):
        raise refuse(f"{param}.content", "must be a string or a list of parts")
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise refuse(f"{param}.content[{place}]", "must be an object with a type")


def count_completion_prompts(fields: Fields) -> int:
    """``prompt``: a string, token ids, or a list of either."""
    return _count("prompt", decoded("prompt", fields["prompt"]) if "prompt" in fields else None, "both")


def count_generate_prompts(fields: Fields) -> int:
    """Exactly one of ``prompt``, and SGLang's ``text`` and ``input_ids``; each may be a list of prompts."""
    given = [name for name in GENERATE if name in fields]
    if len(given) != 1:
        raise refuse("prompt", "must be given, and only one of prompt, text, input_ids")
    (name,) = given
    return _count(name, decoded(name, fields[name]), GENERATE[name])


def count_to_tokenize(fields: Fields) -> int:
    """``/tokenize`` takes text, which may be empty, or messages; the engine says what else it takes."""
    given = [name for name in ("prompt", "text", "messages") if name in fields]
    if not given:
        raise refuse("prompt", "must be given, or text, or messages")
    for name in given:
        if not isinstance(decoded(name, fields[name]), str | list):
            raise refuse(name, "must be a string or a list")
    return 1


def count_to_detokenize(fields: Fields) -> int:
    """``/detokenize`` takes token ids, or lists of them."""
    value = decoded("tokens", fields["tokens"]) if "tokens" in fields else None
    ids = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for one in ids:
        why = None if one == [] else token_ids(one)
        if why is not None:
            raise refuse("tokens", why)
    return 1


def _count(param: str, prompt: object, form: Form) -> int:
    if isinstance(prompt, str):
        _check_text(param, prompt, form)
        return 1
    if not isinstance(prompt, list):
        raise refuse(param, "must be a string, token ids, or a list of either")
    if not prompt:
        raise refuse(param, "is empty")
    if not any(isinstance(item, str | list) for item in prompt):
        _check_ids(param, prompt, form)
        return 1
    other = next((place for place, item in enumerate(prompt) if type(item) is not type(prompt[0])), None)
    if other is not None:
        raise refuse(f"{param}[{other}]", f"must be of the same kind as {param}[0]: text, or token ids")
    if len(prompt) > MAX_ITEMS:
        raise refuse(param, f"holds {len(prompt)} prompts, more than {MAX_ITEMS}")
    check = _check_text if isinstance(prompt[0], str) else _check_ids
    for place, item in enumerate(prompt):
        check(f"{param}[{place}]", item, form)
    return len(prompt)


def _check_text(param: str, text: object, form: Form) -> None:
    if form == "token ids":
        raise refuse(param, "must be token ids, not text")
    if not text:
        raise refuse(param, "is empty")


def _check_ids(param: str, ids: object, form: Form) -> None:
    if form == "texts":
        raise refuse(param, "must be text, not token ids")
    why = token_ids(ids)
    if why is not None:
        raise refuse(param, why)
