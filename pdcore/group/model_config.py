"""What a model's ``config.json`` says that decides whether two engines can share its KV cache. No tensor library.

Whatever is not written there is None: nobody guesses from a model's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.group.flags import Flags
from pdcore.topology.records import Json

FILE: Final = "config.json"
MAX_BYTES: Final = 4 << 20

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_LENGTHS: Final = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_sequence_length", "max_seq_length", "max_target_positions"),
)
_EXPERTS: Final = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_ATTENTION_LAYERS: Final = frozenset(
    {"attention", "full_attention", "sliding_attention", "chunked_attention", "sliding", "full", "chunked"}
)
_RECURRENT_FIELDS: Final = (
    *("mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_num_heads", "ssm_state_size", "conv_kernel"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_conv_kernel_dim", "linear_attn_config"),
)
_OVERRIDES: Final = ("hf-overrides", "json-model-override-args")
_UNSCALED: Final = frozenset({"su", "longrope", "llama3", "default", "mrope"})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. ``fields`` is the whole document, what is asked of it comes from its part about text."""

    fields: Mapping[str, Json]

    @property
    def text(self) -> Mapping[str, Json]:
        """The part about the language model: the document, or what it nests."""
        for name in _NESTED:
            nested = self.fields.get(name)
            if isinstance(nested, dict):
                return ModelConfig(nested).text
        return self.fields

    @property
    def positions(self) -> int | None:
        """The number of positions as written, which is pdcore's own engine's limit."""
        return self._integer("max_position_embeddings")

    @property
    def context_length(self) -> int | None:
        """The context that vLLM and SGLang derive when nobody gives one: the smallest limit, with rotary scaling."""
        found = [length for name in _LENGTHS if (length := self._integer(name)) is not None]
        if not found:
            return None
        length = min(found)
        scaling = self.text.get("rope_scaling") or self.text.get("rope_parameters")
        if not isinstance(scaling, dict):
            return length
        kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
        if kind in _UNSCALED or isinstance(factor, bool) or not isinstance(factor, int | float):
            return length
        original = scaling.get("original_max_position_embeddings")
        return int((original if kind == "yarn" and isinstance(original, int) else length) * factor)

    @property
    def dtype(self) -> str | None:
        """The dtype that ``auto`` stands for, where that is not the engine's choice."""
        said = self.text.get("dtype") or self.text.get("torch_dtype") or self.fields.get("torch_dtype")
        return said if said in ("bfloat16", "float16") and isinstance(said, str) else None

    @property
    def is_moe(self) -> bool:
        """Whether it has experts."""
        return any((self._integer(name) or 0) > 1 for name in _EXPERTS)

    @property
    def is_mla(self) -> bool:
        """Whether it keeps latents instead of keys and values."""
        return (self._integer("kv_lora_rank") or 0) > 0

    @property
    def is_recurrent(self) -> bool:
        """Whether some of its layers keep a state instead of a KV cache."""
        layers = self.text.get("layer_types") or self.text.get("layers_block_type")
        if isinstance(layers, list) and any(layer not in _ATTENTION_LAYERS for layer in layers):
            return True
        pattern = self.text.get("hybrid_override_pattern")
        if isinstance(pattern, str) and "M" in pattern:
            return True
        return any(self.text.get(name) not in (None, 0, [], {}) for name in _RECURRENT_FIELDS)

    @property
    def has_windows(self) -> bool:
        """Whether some of its layers see a window of the context only."""
        layers = self.text.get("layer_types")
        if isinstance(layers, list):
            return any("sliding" in str(layer) or "chunked" in str(layer) for layer in layers)
        return self.has_chunks or (
            self._integer("sliding_window") is not None and self.text.get("use_sliding_window") is not False
        )

    @property
    def has_chunks(self) -> bool:
        """Whether some of its layers attend within chunks (local attention)."""
        return self._integer("attention_chunk_size") is not None

    @property
    def layers(self) -> int | None:
        return self._integer("num_hidden_layers")

    @property
    def kv_heads(self) -> int | None:
        return self._integer("num_key_value_heads") or self._integer("num_attention_heads")

    @property
    def shared_evenly(self) -> Mapping[str, int]:
        """What ranks must share evenly, by its name in the config: query heads, and the width of a dense MLP."""
        found = {name: self._integer(name) for name in ("num_attention_heads", "intermediate_size")}
        return {name: count for name, count in found.items() if count is not None}

    @property
    def head_dim(self) -> int | None:
        """Elements of one head; derived from the hidden size where it is not written."""
        hidden, heads = self._integer("hidden_size"), self._integer("num_attention_heads")
        return self._integer("head_dim") or (hidden // heads if hidden and heads else None)

    def _integer(self, name: str) -> int | None:
        value = self.text.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def overridden(model: ModelConfig | None, flags: Flags) -> ModelConfig | None:
    """``model`` with what the engine's flags put over its config; None where nobody can tell what comes out."""
    if model is None or flags.last(_OVERRIDES) is None:
        return model
    try:
        over = json.loads(flags.value(_OVERRIDES) or "")
    except (ValueError, RecursionError):
        return None
    return ModelConfig(_merged(model.fields, over)) if isinstance(over, dict) else None


def _merged(fields: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    merged = dict(fields)
    for key, value in over.items():
        held = merged.get(key)
        merged[key] = _merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return merged


class NoModelConfig(ValueError):
    """A directory without a readable ``config.json``; the sentence says why."""


def is_path(model: str) -> bool:
    """Whether ``model`` names a directory rather than something that the engine fetches."""
    return model.startswith(("/", "./", "../", "~"))


def read_model_config(directory: Path) -> ModelConfig:
    """The model in ``directory``. Raises NoModelConfig."""
    file = directory / FILE
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as wrong:
        raise NoModelConfig(f"{file} cannot be read: {wrong.strerror}") from None
    if len(content) > MAX_BYTES:
        raise NoModelConfig(f"{file} is longer than {MAX_BYTES} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise NoModelConfig(f"{file} is not JSON") from None
    if not isinstance(document, dict):
        raise NoModelConfig(f"{file} is not a JSON object")
    return ModelConfig(document)
