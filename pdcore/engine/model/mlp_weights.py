"""The tensors of one layer's MLP or experts, as each family stores them."""

from __future__ import annotations

import torch
from torch import Tensor

from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.experts import Experts, Router
from pdcore.engine.model.families import ExpertsConfig
from pdcore.engine.model.layers import FeedForward, GatedMlp, Linear
from pdcore.engine.model.packing import packed
from pdcore.engine.model.parts import Part, stacked, summed
from pdcore.engine.model.shard import Shard
from pdcore.engine.model.weights import ALL, Weights


def mlp_of(weights: Weights, config: ModelConfig, shard: Shard, prefix: str, *, sparse: bool) -> FeedForward:
    """The MLP whose tensors' names begin with ``prefix``."""
    if not sparse or config.experts is None:
        return _dense(weights, config, shard, prefix, config.intermediate)
    if config.clamped_gate is not None:
        return _side_by_side(weights, config, config.experts, shard, prefix)
    return _one_by_one(weights, config, config.experts, shard, prefix)


def _dense(weights: Weights, config: ModelConfig, shard: Shard, prefix: str, intermediate: int) -> GatedMlp:
    middle = Part.of(intermediate, shard.share(intermediate))
    both = {f"{prefix}gate_proj": middle, f"{prefix}up_proj": middle}
    return GatedMlp(
        packed(stacked(weights, both, config.hidden, biased=config.mlp_bias)),
        packed(
            summed(
                weights,
                f"{prefix}down_proj",
                middle,
                config.hidden,
                biased=config.mlp_bias,
                adds_bias=shard.adds_bias,
            )
        ),
    )


def _one_by_one(
    weights: Weights, config: ModelConfig, experts: ExpertsConfig, shard: Shard, prefix: str
) -> Experts:
    """Qwen and DeepSeek: each expert has names of its own."""
    middle = Part.of(experts.intermediate, shard.share(experts.intermediate))
    shape = (experts.count, middle.own.stop - middle.own.start, config.hidden)
    gate_up = torch.empty(shape[0], 2 * shape[1], shape[2], dtype=weights.dtype, device=weights.device)
    down = torch.empty(shape[0], shape[2], shape[1], dtype=weights.dtype, device=weights.device)
    for number in range(experts.count):
        one = f"{prefix}experts.{number}."
        both = {f"{one}gate_proj": middle, f"{one}up_proj": middle}
        gate_up[number] = stacked(weights, both, config.hidden, biased=False).weight
        down[number] = summed(
            weights, f"{one}down_proj", middle, config.hidden, biased=False, adds_bias=False
        ).weight
    shared = None
    if experts.shared:
        shared = _dense(weights, config, shard, f"{prefix}shared_experts.", experts.shared)
    return Experts(
        router=_router(weights, config, experts, f"{prefix}gate"), gate_up=gate_up, down=down, shared=shared
    )


def _router(weights: Weights, config: ModelConfig, experts: ExpertsConfig, name: str) -> Router:
    """DeepSeek scores in float32 whatever the model computes in."""
    dtype = torch.float32 if config.latent is not None else None
    scorer = weights.take(f"{name}.weight", experts.count, config.hidden, dtype=dtype)
    correction = None
    if experts.corrected:
        correction = weights.take(f"{name}.e_score_correction_bias", experts.count, dtype=torch.float32)
    return Router(experts, Linear(scorer), correction)


def _side_by_side(
    weights: Weights, config: ModelConfig, experts: ExpertsConfig, shard: Shard, prefix: str
) -> Experts:
    """gpt-oss: all experts in one tensor, inputs before outputs, a gate's column beside its up's."""
    count, hidden, whole = experts.count, config.hidden, experts.intermediate
    middle = Part.of(whole, shard.share(whole))
    both = Part.of(whole, shard.share(whole), 2)
    names = {kind: f"{prefix}experts.{kind}" for kind in ("gate_up_proj", "down_proj")}
    gate_up = weights.take(names["gate_up_proj"], count, hidden, 2 * whole, part=(ALL, ALL, both.own))
    gate_up_bias = weights.take(f"{names['gate_up_proj']}_bias", count, 2 * whole, part=(ALL, both.own))
    down = weights.take(names["down_proj"], count, whole, hidden, part=(ALL, middle.own))
    down_bias = weights.take(f"{names['down_proj']}_bias", count, hidden)
    scorer = Linear(
        weights.take(f"{prefix}router.weight", count, hidden), weights.take(f"{prefix}router.bias", count)
    )
    return Experts(
        router=Router(experts, scorer),
        gate_up=_gates_first(gate_up.transpose(1, 2)),
        gate_up_bias=_gates_first(gate_up_bias),
        down=down.transpose(1, 2).contiguous(),
        down_bias=down_bias if shard.adds_bias else None,
        clamped=config.clamped_gate,
    )


def _gates_first(interleaved: Tensor) -> Tensor:
    return torch.cat((interleaved[:, 0::2], interleaved[:, 1::2]), dim=1)
