"""From the bytes a client sent to a checked :class:`ClientRequest`, or the error that names what is wrong.

Pure. The body is kept as a map of top-level fields to their *raw* JSON, so that what the router does not know (number
forms, escapes, nested objects) reaches the engines byte for byte; only what the router must know is decoded. A repeated
top-level key counts once, with its last value, so that no engine can read another one than the router checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from pdcore.errors import ApiError
from pdcore.router.fields import PLACEMENT, TABLE, check_known, is_internal, refuse, token_ids

Endpoint = Literal["chat", "completions", "generate"]
PATHS: Final[Mapping[Endpoint, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/generate",
}

KindT = TypeVar("KindT")

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One accepted request.

    ``fields`` is the client's body without the placement fields, each value raw JSON. ``room_name`` is the client's
    ``bootstrap_room``: an external name, never the room of a leg. ``prefill_address`` pins the prefill instance.
    ``items`` counts the (prompt, sample) pairs, each of which has a room of its own.
    """

    endpoint: Endpoint
    model: str | None
    stream: bool
    fields: Mapping[str, msgspec.Raw]
    room_name: int | None = None
    prefill_address: tuple[str, int] | None = None
    prefill_dp_rank: int | None = None
    items: int = 1

    def body(self, extra: Mapping[str, object]) -> bytes:
        """The JSON a leg carries: the client's fields as they came, then ``extra``."""
        return _ENCODER.encode({**self.fields, **extra})


def parse(endpoint: Endpoint, body: bytes) -> ClientRequest:
    """Check ``body`` for ``endpoint``; raises :class:`ApiError` (400) with the field and the value at fault."""
    fields = _split(body)
    for name in fields:
        if is_internal(name):
            raise refuse(name, "is set by the router and may not be sent")
    known = {name: _value(name, fields[name]) for name in fields if name in TABLE}
    check_known(known)
    _check_stream(known)
    _PROMPTS[endpoint](fields)
    return ClientRequest(
        endpoint=endpoint,
        model=_optional(known, "model", str),
        stream=bool(known.get("stream")),
        fields={name: raw for name, raw in fields.items() if name not in PLACEMENT},
        room_name=_optional(known, "bootstrap_room", int),
        prefill_address=_address(known),
        prefill_dp_rank=_optional(known, "disagg_prefill_dp_rank", int),
    )


def _split(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        body.decode("utf-8")
        return _FIELDS.decode(body)
    except UnicodeDecodeError as wrong:
        raise ApiError("invalid_request", f"the body is not UTF-8 (byte {wrong.start})") from wrong
    except msgspec.ValidationError as wrong:
        raise ApiError("invalid_request", "the body must be a JSON object") from wrong
    except msgspec.DecodeError as wrong:
        if not body.strip():
            raise ApiError("invalid_request", "the body is empty") from None
        raise ApiError("invalid_request", f"the body is not JSON: {wrong}") from wrong
    except RecursionError as wrong:
        raise ApiError("invalid_request", "the body is nested too deeply") from wrong


def _value(name: str, raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise refuse(name, f"cannot be read: {wrong}") from wrong


def _optional(known: Mapping[str, object], name: str, kind: type[KindT]) -> KindT | None:
    value = known.get(name)
    return value if isinstance(value, kind) else None


def _check_stream(known: Mapping[str, object]) -> None:
    if known.get("stream_options") is not None and not known.get("stream"):
        raise refuse("stream_options", "is only allowed with stream set to true")


def _address(known: Mapping[str, object]) -> tuple[str, int] | None:
    host, port = _optional(known, "bootstrap_host", str), _optional(known, "bootstrap_port", int)
    if (host is None) != (port is None):
        missing = "bootstrap_host" if host is None else "bootstrap_port"
        raise refuse(missing, "is missing: host and port name a prefill instance together")
    return None if host is None or port is None else (host, port)


def _check_messages(fields: Mapping[str, msgspec.Raw]) -> None:
    messages = _value("messages", fields["messages"]) if "messages" in fields else None
    if not isinstance(messages, list) or not messages:
        raise refuse("messages", "must be a list of messages that is not empty")
    for place, message in enumerate(messages):
        _check_message(f"messages[{place}]", message)
    if not any(message.get("content") or message.get("tool_calls") for message in messages):
        raise refuse("messages", "has no content")


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


def _check_prompt(fields: Mapping[str, msgspec.Raw]) -> None:
    prompt = _value("prompt", fields["prompt"]) if "prompt" in fields else None
    _check_one_prompt("prompt", prompt)


def _check_one_prompt(param: str, prompt: object) -> None:
    if isinstance(prompt, str):
        if not prompt:
            raise refuse(param, "is empty")
        return
    if not isinstance(prompt, list):
        raise refuse(param, "must be a string or a list of token ids")
    if any(isinstance(item, str | list) for item in prompt):
        _check_batch(param, prompt)
        return
    why = token_ids(prompt)
    if why is not None:
        raise refuse(param, why)


def _check_batch(param: str, prompts: list[object]) -> None:
    """A list of prompts is as good as its only one; more would need a room each."""
    if len({type(item) for item in prompts}) > 1:
        raise refuse(param, "mixes strings and token ids")
    if not all(prompts):
        raise refuse(param, "holds an empty prompt")
    if len(prompts) > 1:
        raise refuse(param, "must be one prompt: a list of several is not supported")
    why = token_ids(prompts[0]) if isinstance(prompts[0], list) else None
    if why is not None:
        raise refuse(f"{param}[0]", why)


def _check_generate(fields: Mapping[str, msgspec.Raw]) -> None:
    given = [name for name in ("prompt", "text", "input_ids") if name in fields]
    if len(given) != 1:
        raise refuse("prompt", "must be given, and only one of prompt, text, input_ids")
    _check_one_prompt(given[0], _value(given[0], fields[given[0]]))


_PROMPTS: Final = {"chat": _check_messages, "completions": _check_prompt, "generate": _check_generate}
