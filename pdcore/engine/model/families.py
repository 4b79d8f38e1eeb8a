"""What sets the model families apart, read from config.json: attention, windows, experts. Needs no tensor library.

Llama, Qwen2 and Qwen3 differ in biases, norms of queries and keys, and windows. DeepSeek caches one latent per token
instead of keys and values; Qwen3-MoE, DeepSeek and gpt-oss choose among experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pdcore.engine.model.directory import Fields, refuse

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"]
Scoring = Literal["softmax", "sigmoid"]

ARCHITECTURES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
}
_WITH_WINDOWS: Final = frozenset({"qwen2", "qwen3", "qwen3_moe", "gpt_oss"})
_WITH_EXPERTS: Final = frozenset({"qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"})

Windows = tuple[int | None, ...]
"""How many tokens, the own one included, each layer's attention looks at; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention. ``q_rank`` is None where queries are projected directly.

    ``interleaved``: the weights make neighbours, not halves, the pairs that are rotated.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool

    @property
    def query_dim(self) -> int:
        """Elements of one head's query."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Layers in which each token is computed by ``per_token`` of ``count`` MLPs; ``sparse`` says which layers.

    Scores beyond the best ``groups_kept`` of ``groups`` are not looked at. ``corrected``: a stored correction is
    added to the scores for the choice only. ``normalised``: the chosen weights add up to one, before ``scale``.
    ``shared`` is the intermediate size of the MLP that every token also runs through, 0 for none.
    """

    count: int
    per_token: int
    intermediate: int
    sparse: tuple[bool, ...]
    scoring: Scoring = "softmax"
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    corrected: bool = False
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGate:
    """gpt-oss's activation: ``clamp(gate) * sigmoid(alpha * gate) * (clamp(up) + 1)``."""

    alpha: float
    limit: float


def family_of(directory: Path, document: Mapping[str, object]) -> Family:
    """The family of the first architecture that is known; ConfigError when none is."""
    named = document.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if not names:
        raise refuse(directory, "config.json names no architecture")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    known = ", ".join(ARCHITECTURES)
    raise refuse(directory, f"architecture {names[0]} is not supported (supported: {known})")


def windows_of(directory: Path, family: Family, fields: Fields, layers: int) -> Windows:
    """Each layer's window; ConfigError for layer types or windows that the family does not have."""
    kinds = _layer_types(directory, family, fields, layers)
    if "sliding_attention" not in kinds:
        return (None,) * layers
    window = fields.integer("sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _layer_types(directory: Path, family: Family, fields: Fields, layers: int) -> tuple[str, ...]:
    named = fields.given("layer_types")
    slides = family in _WITH_WINDOWS
    if named is None:
        return _implied_layer_types(directory, family, fields, layers)
    known = ("full_attention", "sliding_attention") if slides else ("full_attention",)
    kinds = tuple(named) if isinstance(named, list) else ()
    other = [kind for kind in kinds if kind not in known]
    if other:
        raise refuse(directory, f"config.json: layer type {other[0]!r} is not supported")
    if len(kinds) != layers:
        raise refuse(directory, f"config.json: layer_types names {len(kinds)} of {layers} layers")
    return kinds


def _implied_layer_types(directory: Path, family: Family, fields: Fields, layers: int) -> tuple[str, ...]:
    if family == "gpt_oss":
        return tuple("full_attention" if i % 2 else "sliding_attention" for i in range(layers))
    if not fields.flag("use_sliding_window"):
        return ("full_attention",) * layers
    if family not in _WITH_WINDOWS:
        raise refuse(
            directory, "config.json: use_sliding_window is set, but sliding-window attention is not supported"
        )
    first = 0 if family == "qwen3_moe" else fields.count("max_window_layers", 28)
    return tuple("sliding_attention" if i >= first else "full_attention" for i in range(layers))


def latent_of(family: Family, fields: Fields) -> LatentConfig | None:
    """DeepSeek's attention."""
    if family not in ("deepseek_v2", "deepseek_v3"):
        return None
    return LatentConfig(
        q_rank=None if fields.given("q_lora_rank") is None else fields.integer("q_lora_rank"),
        kv_rank=fields.integer("kv_lora_rank", 512),
        nope_dim=fields.integer("qk_nope_head_dim", 128),
        rope_dim=fields.integer("qk_rope_head_dim", 64),
        value_dim=fields.integer("v_head_dim", 128),
        interleaved=family == "deepseek_v2" or fields.flag("rope_interleave", True),
    )


def experts_of(directory: Path, family: Family, fields: Fields, layers: int) -> ExpertsConfig | None:
    """The experts, or None for a family, or a model of it, without."""
    if family not in _WITH_EXPERTS:
        return None
    experts = {"qwen3_moe": _qwen3, "gpt_oss": _gpt_oss}.get(family, _deepseek)(
        directory, family, fields, layers
    )
    if not any(experts.sparse):
        return None
    if experts.per_token > experts.count:
        raise refuse(
            directory, f"config.json: {experts.per_token} experts per token, but there are {experts.count}"
        )
    if experts.count % experts.groups or experts.groups_kept > experts.groups:
        raise refuse(
            directory,
            f"config.json: {experts.count} experts cannot be chosen from {experts.groups_kept} of"
            f" {experts.groups} groups",
        )
    return experts


def _qwen3(directory: Path, family: Family, fields: Fields, layers: int) -> ExpertsConfig:
    dense = fields.given("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise refuse(directory, f"config.json: mlp_only_layers is {dense!r}, must be a list")
    step = fields.integer("decoder_sparse_step", 1)
    return ExpertsConfig(
        count=fields.integer("num_experts", fields.integer("num_local_experts", 128)),
        per_token=fields.integer("num_experts_per_tok", 8),
        intermediate=fields.integer("moe_intermediate_size", 768),
        sparse=tuple(i not in dense and (i + 1) % step == 0 for i in range(layers)),
        normalised=fields.flag("norm_topk_prob"),
    )


def _gpt_oss(directory: Path, family: Family, fields: Fields, layers: int) -> ExpertsConfig:
    """Its softmax over the chosen scores alone is that over all scores, normalised."""
    return ExpertsConfig(
        count=fields.integer("num_local_experts", 128),
        per_token=fields.integer("num_experts_per_tok", 4),
        intermediate=fields.integer("intermediate_size", 2880),
        sparse=(True,) * layers,
    )


def _deepseek(directory: Path, family: Family, fields: Fields, layers: int) -> ExpertsConfig:
    third = family == "deepseek_v3"
    if fields.integer("moe_layer_freq", 1) != 1:
        raise refuse(directory, "config.json: moe_layer_freq is set, but only 1 is supported")
    method = fields.given("topk_method") or ("noaux_tc" if third else "greedy")
    scoring = fields.given("scoring_func") or ("sigmoid" if third else "softmax")
    known = ("noaux_tc",) if third else ("greedy", "group_limited_greedy")
    if method not in known or scoring != ("sigmoid" if third else "softmax"):
        raise refuse(
            directory, f"config.json: experts chosen by {method} of {scoring} scores are not supported"
        )
    normalised = fields.flag("norm_topk_prob", third)
    if normalised and not third:
        raise refuse(directory, "config.json: norm_topk_prob is set, which is not supported in DeepSeek-V2")
    grouped = method != "greedy"
    intermediate = fields.integer("moe_intermediate_size", 2048 if third else 1407)
    dense = fields.count("first_k_dense_replace", 3 if third else 0)
    return ExpertsConfig(
        count=fields.integer("n_routed_experts", 256 if third else 64),
        per_token=fields.integer("num_experts_per_tok", 8 if third else None),
        intermediate=intermediate,
        sparse=tuple(i >= dense for i in range(layers)),
        scoring="sigmoid" if third else "softmax",
        normalised=normalised,
        scale=fields.number("routed_scaling_factor", 2.5 if third else 1.0),
        groups=fields.integer("n_group", 8 if third else 1) if grouped else 1,
        groups_kept=fields.integer("topk_group", 4 if third else 1) if grouped else 1,
        corrected=third,
        shared=fields.count("n_shared_experts", 1 if third else 2) * intermediate,
    )


def clamped_gate_of(family: Family, fields: Fields) -> ClampedGate | None:
    """gpt-oss's activation; None for the others' SiLU."""
    if family != "gpt_oss":
        return None
    return ClampedGate(alpha=fields.number("swiglu_alpha", 1.702), limit=fields.number("swiglu_limit", 7.0))
