"""A client's request cut down to its prompt, for engines whose prefill computes like any request. Pure.

Such an engine is told to stop after one token, which nobody reads: decode samples its own. Every field that could then
contradict the rest goes along, and every one that could end the answer otherwise than by its length, because an engine
keeps the KV only of a request that ran into its limit. What shapes the prompt stays, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from pdcore.errors import ApiError
from pdcore.router.api import ClientRequest
from pdcore.router.fields import refuse

LIMITS: Final = ("max_tokens", "max_completion_tokens")
DROPPED: Final = frozenset(
    {
        *LIMITS,
        *("stream", "stream_options", "n", "best_of", "min_tokens", "min_completion_tokens"),
        *("stop", "stop_token_ids", "ignore_eos"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "echo"),
    }
)


def one_token(request: ClientRequest) -> ClientRequest:
    """``request`` as prefill gets it: the same prompt, one token, no stream."""
    kept = {name: raw for name, raw in request.fields.items() if name not in DROPPED}
    limits = {name: msgspec.Raw(b"1") for name in LIMITS if name == LIMITS[0] or name in request.fields}
    fixed = {"stream": msgspec.Raw(b"false"), "ignore_eos": msgspec.Raw(b"true")}
    return replace(request, stream=False, fields={**kept, **limits, **fixed})


def check_one_hand_off(request: ClientRequest, protocol: str) -> None:
    """Raise the 400 for what one set of transfer parameters cannot carry, or what only prefill could have answered."""
    if request.items > 1:
        param = "n" if _given(request.fields, "n", b"1") else "prompt"
        raise refuse(
            param, f"asks for several answers, which engines of protocol {protocol} cannot hand over"
        )
    if _given(request.fields, "prompt_logprobs"):
        raise _prompt_logprobs("prompt_logprobs", protocol)
    if _given(request.fields, "echo") and _given(request.fields, "logprobs"):
        raise _prompt_logprobs("echo", protocol)


def _prompt_logprobs(param: str, protocol: str) -> ApiError:
    return refuse(
        param, f"asks for logprobs of the prompt, which engines of protocol {protocol} do not hand over"
    )


def _given(fields: Mapping[str, msgspec.Raw], name: str, *as_good_as_none: bytes) -> bool:
    return name in fields and bytes(fields[name]).strip() not in (b"null", b"false", *as_good_as_none)
