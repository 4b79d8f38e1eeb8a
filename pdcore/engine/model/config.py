"""What a model is, read from its directory without touching a weight. Needs no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout
from pdcore.engine.model.directory import Fields, read_json, read_optional_json, refuse
from pdcore.engine.model.families import (
    ClampedGate,
    ExpertsConfig,
    Family,
    LatentConfig,
    Windows,
    clamped_gate_of,
    experts_of,
    family_of,
    latent_of,
    windows_of,
)
from pdcore.engine.model.rope_config import RopeConfig, read_rope

ITEMSIZE: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2}
"""Bytes of one element of the dtypes a model computes in."""

_WITHOUT_QUANTISATION: Final = "quantised weights are not supported"
_HEAD_DIM: Final[Mapping[Family, int]] = {"qwen3": 128, "gpt_oss": 64}
_THETA: Final[Mapping[Family, float]] = {"gpt_oss": 150000.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One causal language model of a supported family.

    ``eos_token_ids`` are all tokens that end an answer: those of ``generation_config.json``, else ``config.json``,
    and the tokenizer's. ``context_length`` is the most tokens the positions were made for. With ``latent`` attention
    ``kv_heads`` is 1 and ``head_dim`` the elements of one query.
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
    windows: Windows
    latent: LatentConfig | None = None
    experts: ExpertsConfig | None = None
    clamped_gate: ClampedGate | None = None
    extra_layers: int = 0

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before they are rotated."""
        return self.family in ("qwen3", "qwen3_moe")

    @property
    def out_bias(self) -> bool:
        """Whether attention's output projection has a bias when its inputs have one."""
        return self.attention_bias and self.family != "qwen2"

    @property
    def sinks(self) -> bool:
        """Whether each head has a score that takes part in the softmax and stands for no token."""
        return self.family == "gpt_oss"

    @property
    def attention(self) -> str:
        """What instances that pair must agree on: ``gqa``, or ``mla`` where every rank holds all of the KV."""
        return "gqa" if self.latent is None else "mla"

    @property
    def rotated_dim(self) -> int:
        """Elements of a query that the rotary embedding turns."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer's MLP is one of experts."""
        return self.experts is not None and self.experts.sparse[layer]

    def kv_layout(self, block_size: int, dtype: str) -> KvLayout:
        """How this model's KV cache lies in memory when it computes in ``dtype``: a group per kind of layer."""
        kinds = {window: None for window in self.windows}
        groups = []
        for window in sorted(kinds, key=lambda w: w is not None):
            layers = [layer for layer in range(self.layers) if self.windows[layer] == window]
            key = "kv" if len(kinds) == 1 else "full" if window is None else "window"
            entries = tuple(entry for layer in layers for entry in self._entries(layer, dtype))
            groups.append(KvGroup(key=key, block_size=block_size, entries=entries, window=window))
        return KvLayout(groups=tuple(groups))

    def _entries(self, layer: int, dtype: str) -> tuple[KvEntry, ...]:
        item, latent = ITEMSIZE[dtype], self.latent
        if latent is None:
            return tuple(
                KvEntry(
                    name=name,
                    layer=layer,
                    heads=self.kv_heads,
                    dim=self.head_dim,
                    itemsize=item,
                    dtype_name=dtype,
                )
                for name in ("k", "v")
            )
        return tuple(
            KvEntry(
                name=name,
                layer=layer,
                heads=1,
                dim=dim,
                itemsize=item,
                dtype_name=dtype,
                sharding="replicated",
            )
            for name, dim in (("latent", latent.kv_rank), ("rope", latent.rope_dim))
        )

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """Read ``config.json`` and its companions; ConfigError, one sentence, for what cannot be served."""
        document = read_json(directory, "config.json")
        family = family_of(directory, document)
        _refuse_unsupported(directory, family, document)
        fields = Fields(directory, "config.json", document)
        heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
        layers, latent = fields.integer("num_hidden_layers"), latent_of(family, fields)
        whole = _HEAD_DIM.get(family, max(hidden // heads, 1))
        config = cls(
            family=family,
            layers=layers,
            hidden=hidden,
            intermediate=fields.integer("intermediate_size"),
            heads=heads,
            kv_heads=1 if latent else fields.integer("num_key_value_heads", heads),
            head_dim=latent.query_dim if latent else fields.integer("head_dim", whole),
            vocab_size=fields.integer("vocab_size"),
            rms_eps=fields.number("rms_norm_eps", 1e-5 if family == "gpt_oss" else 1e-6),
            rope=read_rope(directory, document, _THETA.get(family, 10000.0)),
            context_length=fields.integer("max_position_embeddings"),
            eos_token_ids=eos_token_ids(directory, document),
            tied_embeddings=fields.flag("tie_word_embeddings"),
            attention_bias=family == "qwen2" or fields.flag("attention_bias", family == "gpt_oss"),
            mlp_bias=family in ("llama", "deepseek_v2") and fields.flag("mlp_bias"),
            windows=windows_of(directory, family, fields, layers),
            latent=latent,
            experts=experts_of(directory, family, fields, layers),
            clamped_gate=clamped_gate_of(family, fields),
            extra_layers=fields.count("num_nextn_predict_layers", 0),
        )
        config._check(directory)
        return config

    def _check(self, directory: Path) -> None:
        if self.heads % self.kv_heads:
            raise refuse(
                directory, f"config.json: {self.heads} heads cannot share {self.kv_heads} key/value heads"
            )
        if self.rotated_dim % 2:
            raise refuse(directory, f"config.json: head_dim {self.rotated_dim} is odd and cannot be rotated")
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


def _refuse_unsupported(directory: Path, family: Family, document: Mapping[str, object]) -> None:
    if document.get("quantization_config"):
        raise refuse(directory, f"config.json: quantization_config is set, but {_WITHOUT_QUANTISATION}")
    if family == "llama" and document.get("rope_interleaved"):
        raise refuse(
            directory,
            "config.json: rope_interleaved is set, but interleaved rotary embeddings are not supported",
        )
    activation = document.get("hidden_act", "silu")
    if activation != "silu":
        raise refuse(directory, f"config.json: hidden_act {activation!r} is not supported (supported: silu)")
