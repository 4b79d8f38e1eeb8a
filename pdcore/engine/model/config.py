"""What a model is, read from its directory without touching a weight. Needs no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.model.directory import Fields, read_json, read_optional_json, refuse

Family = Literal["llama", "qwen3"]
RopeKind = Literal["default", "linear", "llama3", "yarn"]

ITEMSIZE: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2}
"""Bytes of one element of the dtypes a model computes in."""

_ARCHITECTURES: Final[Mapping[str, Family]] = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
_ROPE_KINDS: Final[Mapping[str, RopeKind]] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}
_UNSUPPORTED: Final[Mapping[str, str]] = {
    "quantization_config": "quantised weights are not supported",
    "use_sliding_window": "sliding-window attention is not supported",
    "rope_interleaved": "interleaved rotary embeddings are not supported",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """The rotary embedding. Fields a kind does not use keep their neutral values."""

    kind: RopeKind
    theta: float
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One causal language model of a supported family.

    ``eos_token_ids`` are all tokens that end an answer: those of ``generation_config.json``, else ``config.json``,
    and the tokenizer's. ``context_length`` is the most tokens the positions were made for.
    """

    family: Family
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope: RopeConfig
    context_length: int
    eos_token_ids: tuple[int, ...]
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before they are rotated."""
        return self.family == "qwen3"

    def kv_layout(self, block_size: int, dtype: str) -> KvLayout:
        """How this model's KV cache lies in memory when it computes in ``dtype``."""
        return KvLayout.dense(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            itemsize=ITEMSIZE[dtype],
            dtype_name=dtype,
        )

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Read ``config.json`` and its companions; ConfigError, one sentence, for what cannot be served."""
        document = read_json(directory, "config.json")
        family = _family(directory, document)
        _refuse_unsupported(directory, document)
        fields = Fields(directory, "config.json", document)
        heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
        config = cls(
            family=family,
            layers=fields.integer("num_hidden_layers"),
            hidden=hidden,
            intermediate=fields.integer("intermediate_size"),
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=fields.integer("head_dim", 128 if family == "qwen3" else max(hidden // heads, 1)),
            vocab_size=fields.integer("vocab_size"),
            rms_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_rope(directory, document),
            context_length=fields.integer("max_position_embeddings"),
            eos_token_ids=eos_token_ids(directory, document),
            tied_embeddings=fields.flag("tie_word_embeddings"),
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=family == "llama" and fields.flag("mlp_bias"),
        )
        config._check(directory)
        return config

    def _check(self, directory: Path) -> None:
        if self.heads % self.kv_heads:
            raise refuse(
                directory, f"config.json: {self.heads} heads cannot share {self.kv_heads} key/value heads"
            )
        if self.head_dim % 2:
            raise refuse(directory, f"config.json: head_dim {self.head_dim} is odd and cannot be rotated")
        beyond = [token for token in self.eos_token_ids if token >= self.vocab_size]
        if beyond:
            raise refuse(
                directory, f"end-of-text token {beyond[0]} is outside the vocabulary of {self.vocab_size}"
            )


def eos_token_ids(directory: Path, config: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that end an answer, ascending; empty when the directory names none."""
    generation = read_optional_json(directory, "generation_config.json") or {}
    named = _token_ids(generation.get("eos_token_id")) or _token_ids(config.get("eos_token_id"))
    return tuple(sorted({*named, *_tokenizer_eos(directory)}))


def _token_ids(value: object) -> tuple[int, ...]:
    candidates = value if isinstance(value, list) else [value]
    return tuple(item for item in candidates if isinstance(item, int) and item >= 0)


def _tokenizer_eos(directory: Path) -> tuple[int, ...]:
    named = (read_optional_json(directory, "tokenizer_config.json") or {}).get("eos_token")
    content = named.get("content") if isinstance(named, dict) else named
    if not isinstance(content, str):
        return ()
    added = (read_optional_json(directory, "tokenizer.json") or {}).get("added_tokens")
    tokens = added if isinstance(added, list) else []
    return tuple(
        token["id"]
        for token in tokens
        if isinstance(token, dict) and token.get("content") == content and isinstance(token.get("id"), int)
    )


def _family(directory: Path, document: Mapping[str, object]) -> Family:
    named = document.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if not names:
        raise refuse(directory, "config.json names no architecture")
    for name in names:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    known = ", ".join(_ARCHITECTURES)
    raise refuse(directory, f"architecture {names[0]} is not supported (supported: {known})")


def _refuse_unsupported(directory: Path, document: Mapping[str, object]) -> None:
    for field, sentence in _UNSUPPORTED.items():
        if document.get(field):
            raise refuse(directory, f"config.json: {field} is set, but {sentence}")
    activation = document.get("hidden_act", "silu")
    if activation != "silu":
        raise refuse(directory, f"config.json: hidden_act {activation!r} is not supported (supported: silu)")
    kinds = document.get("layer_types")
    other = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else []
    if other:
        raise refuse(directory, f"config.json: layer type {other[0]!r} is not supported")


def _rope(directory: Path, document: Mapping[str, object]) -> RopeConfig:
    """Both spellings: ``rope_parameters``, or ``rope_theta`` beside ``rope_scaling``."""
    given = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise refuse(
            directory, f"config.json: the rotary embedding's parameters are {given!r}, not an object"
        )
    named = given.get("rope_type", given.get("type", "default"))
    kind = _ROPE_KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        known = ", ".join(_ROPE_KINDS)
        raise refuse(directory, f"rotary embedding {named!r} is not supported (supported: {known})")
    if given.get("partial_rotary_factor", document.get("partial_rotary_factor", 1.0)) not in (1.0, None):
        raise refuse(directory, "partial rotary embeddings are not supported")
    fields = Fields(directory, "config.json", {"rope_theta": document.get("rope_theta"), **given})
    theta = fields.number("rope_theta", 10000.0)
    if kind == "default":
        return RopeConfig(kind=kind, theta=theta)
    return _scaled_rope(directory, kind, theta, fields, Fields(directory, "config.json", document))


def _scaled_rope(
    directory: Path, kind: RopeKind, theta: float, fields: Fields, document: Fields
) -> RopeConfig:
    def optional(name: str) -> float | None:
        return None if fields.given(name) is None else fields.number(name)

    whole = document.integer("max_position_embeddings")
    original = fields.integer("original_max_position_embeddings", whole)
    rope = RopeConfig(
        kind=kind,
        theta=theta,
        factor=fields.number("factor"),
        original_context=document.integer("original_max_position_embeddings", original),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", True),
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
    )
    if rope.low_freq_factor >= rope.high_freq_factor or rope.theta <= 1:
        raise refuse(directory, "config.json: the rotary embedding's bounds are contradictory")
    return rope
