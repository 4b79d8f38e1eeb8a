"""Which requests can never run here. Pure."""

from __future__ import annotations

from pdcore.engine.messages import Start
from pdcore.errors import ApiError


def refuse_what_cannot_run(start: Start, context_length: int, cache_tokens: int) -> None:
    """ApiError 400 for a prompt that leaves no room to answer, in the model's context or in the whole KV cache."""
    length = len(start.prompt)
    if length == 0:
        raise ApiError("invalid_request", "prompt is empty: it has no tokens", param="prompt")
    if length >= context_length:
        message = f"this model's context is {context_length} tokens; the prompt has {length} and leaves no room to answer"
        raise ApiError("context_length_exceeded", message, param="prompt")
    if length + 1 > cache_tokens:
        message = f"the KV cache holds {cache_tokens} tokens; the prompt of {length} and one more do not fit"
        raise ApiError("context_length_exceeded", message, param="prompt")
