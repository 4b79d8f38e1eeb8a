"""Fields that this engine knows and cannot honour: each with the values that ask for nothing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pdcore.engine.fields import Body, wrong

_Neutral = Callable[[object], bool]


def _is_one_of(*values: object) -> _Neutral:
    def neutral(value: object) -> bool:
        return any(type(value) is type(v) and value == v for v in values)

    return neutral


def _is_empty(value: object) -> bool:
    return isinstance(value, list | dict | str) and not value


def _is_text_format(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


_UNSUPPORTED: Final[Mapping[str, _Neutral]] = {
    "prompt_logprobs": _is_one_of(False),
    "echo": _is_one_of(False),
    "suffix": _is_empty,
    "functions": _is_empty,
    "function_call": _is_one_of("none", "auto"),
    "parallel_tool_calls": _is_one_of(True),
    "response_format": _is_text_format,
    "use_beam_search": _is_one_of(False),
    "modalities": _is_one_of(["text"]),
    "audio": _is_empty,
    "web_search_options": _is_empty,
    "guided_json": _is_empty,
    "guided_regex": _is_empty,
    "guided_choice": _is_empty,
    "guided_grammar": _is_empty,
    "structured_outputs": _is_empty,
    "skip_special_tokens": _is_one_of(True),
    "include_stop_str_in_output": _is_one_of(False),
    "add_generation_prompt": _is_one_of(True),
    "continue_final_message": _is_one_of(False),
    "json_schema": _is_empty,
    "regex": _is_empty,
    "ebnf": _is_empty,
    "stop_regex": _is_empty,
    "no_stop_trim": _is_one_of(False),
    "spaces_between_special_tokens": _is_one_of(True),
    "structural_tag": _is_empty,
    "custom_params": _is_empty,
    "stream_interval": _is_one_of(1),
    "image_data": _is_empty,
    "audio_data": _is_empty,
    "video_data": _is_empty,
    "input_embeds": _is_empty,
    "lora_path": _is_empty,
    "token_ids_logprob": _is_empty,
    "return_hidden_states": _is_one_of(False),
    "custom_logit_processor": _is_empty,
    "session_params": _is_empty,
}
UNSUPPORTED: Final = frozenset(_UNSUPPORTED)


def refuse_unsupported(body: Body) -> None:
    """ApiError 400 for the first field that asks for something no engine here does. ``null`` asks for nothing."""
    for name, neutral in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and not neutral(value):
            raise wrong(name, "asks for something this engine does not support", value)
