"""From the bytes a client sent to a checked :class:`ClientRequest`, or the error that names what is wrong.

Pure. The body is kept as a map of top-level fields to their *raw* JSON, so that what the router does not know (number
forms, escapes, nested objects) reaches the engines byte for byte; only what the router must know is decoded. A repeated
top-level key counts once, with its last value, so that no engine can read another one than the router checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from pdcore.errors import ApiError
from pdcore.router.fields import PLACEMENT, TABLE, check_known, decoded, is_internal, refuse
from pdcore.router.prompts import (
    count_completion_prompts,
    count_generate_prompts,
    count_items,
    count_messages,
    count_to_detokenize,
    count_to_tokenize,
)
from pdcore.router.usual import Usual, usual_chat, usual_prompt

Endpoint = Literal["chat", "completions", "generate", "tokenize", "detokenize"]
PATHS: Final[Mapping[Endpoint, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/generate",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
}
TOKENIZING: Final = frozenset[Endpoint]({"tokenize", "detokenize"})
"""What any one instance answers alone: nothing is generated."""

MAX_FIELDS: Final = 1024

KindT = TypeVar("KindT")

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
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
    if len(fields) > MAX_FIELDS:
        raise ApiError("invalid_request", f"the body has {len(fields)} fields, more than {MAX_FIELDS}")
    read = _AT_ONCE.get(endpoint)
    usual = None if read is None else read(body, fields)
    if usual is None:
        return field_by_field(endpoint, fields)
    return ClientRequest(
        endpoint=endpoint,
        model=usual.model,
        stream=bool(usual.stream),
        fields=fields,
        items=1 if usual.n is None else usual.n,
    )


def field_by_field(endpoint: Endpoint, fields: Mapping[str, msgspec.Raw]) -> ClientRequest:
    """The request that ``fields`` make, whatever is unusual about them; raises like :func:`parse`."""
    for name in fields:
        if is_internal(name):
            raise refuse(name, "is set by the router and may not be sent")
    known = {name: decoded(name, fields[name]) for name in fields if name in TABLE}
    check_known(known)
    _check_stream(known)
    prompts = _COUNTED[endpoint](fields)
    return ClientRequest(
        endpoint=endpoint,
        model=_optional(known, "model", str),
        stream=bool(known.get("stream")),
        fields={name: raw for name, raw in fields.items() if name not in PLACEMENT},
        room_name=_optional(known, "bootstrap_room", int),
        prefill_address=_address(known),
        prefill_dp_rank=_optional(known, "disagg_prefill_dp_rank", int),
        items=1 if endpoint in TOKENIZING else count_items(prompts, fields, known),
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


_AT_ONCE: Final[Mapping[Endpoint, Callable[[bytes, Mapping[str, object]], Usual | None]]] = {
    "chat": usual_chat,
    "completions": usual_prompt,
    "generate": usual_prompt,
}
_COUNTED: Final[Mapping[Endpoint, Callable[[Mapping[str, msgspec.Raw]], int]]] = {
    "chat": count_messages,
    "completions": count_completion_prompts,
    "generate": count_generate_prompts,
    "tokenize": count_to_tokenize,
    "detokenize": count_to_detokenize,
}
