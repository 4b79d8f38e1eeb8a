"""A model from a directory: each layer is built of the tensors that its family stores."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from pdcore.engine.device import Device
from pdcore.engine.kv.pool import DTYPES
from pdcore.engine.model.attention_weights import attention_of
from pdcore.engine.model.causal import CausalModel, Layer
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.layers import Linear, Norm, Projection
from pdcore.engine.model.mlp_weights import mlp_of
from pdcore.engine.model.packing import packed
from pdcore.engine.model.rope import frequencies
from pdcore.engine.model.shard import WHOLE, Shard, shard_problems
from pdcore.engine.model.weights import Weights
from pdcore.errors import ConfigError

Progress = Callable[[int, int], None]
"""(layers loaded, layers in all)."""


def load(
    directory: Path,
    config: ModelConfig,
    device: Device,
    dtype: str,
    progress: Progress | None = None,
    *,
    shard: Shard = WHOLE,
) -> CausalModel:
    """The model in ``directory``, or one rank's ``shard`` of it, in ``dtype`` on ``device``.

    ConfigError naming the file or tensor that is wrong, or the sizes that do not divide.
    """
    if problems := shard_problems(config, shard.tp_size):
        raise ConfigError(*problems)
    with Weights.open(directory, device.torch_device, DTYPES[dtype]) as weights:
        layers = []
        for number in range(config.layers):
            layers.append(_layer(weights, config, shard, number))
            if progress is not None:
                progress(number + 1, config.layers)
        final_norm = Norm(weights.take("model.norm.weight", config.hidden), config.rms_eps)
        embedding, head = _ends(weights, config)
        weights.ignore(_unneeded(config))
        weights.refuse_unused()
    frequency, rope_scale = frequencies(config.rope, config.rotated_dim)
    return CausalModel(
        config=shard.sizes(config),
        embedding=embedding,
        layers=tuple(layers),
        final_norm=final_norm,
        head=head,
        frequency=frequency.to(device.torch_device),
        rope_scale=rope_scale,
    )


def _layer(weights: Weights, config: ModelConfig, shard: Shard, number: int) -> Layer:
    prefix = f"model.layers.{number}."
    norms = [
        Norm(weights.take(f"{prefix}{name}.weight", config.hidden), config.rms_eps)
        for name in ("input_layernorm", "post_attention_layernorm")
    ]
    return Layer(
        input_norm=norms[0],
        attention=attention_of(weights, config, shard, prefix + "self_attn."),
        mlp_norm=norms[1],
        mlp=mlp_of(weights, config, shard, prefix + "mlp.", sparse=config.is_sparse(number)),
    )


def _ends(weights: Weights, config: ModelConfig) -> tuple[Tensor, Projection]:
    """The embedding and the output head: one tensor, or each in the form that suits it."""
    name, shape = "model.embed_tokens.weight", (config.vocab_size, config.hidden)
    plain = Linear(weights.take(name if config.tied_embeddings else "lm_head.weight", *shape))
    head = packed(plain)
    if config.tied_embeddings and head is plain:
        return plain.weight, head
    return weights.take(name, *shape, as_stored=True), head


def _unneeded(config: ModelConfig) -> Callable[[str], bool]:
    """A head beside tied embeddings, and the layers behind the last that predict further tokens."""
    beyond = range(config.layers, config.layers + config.extra_layers)

    def unneeded(name: str) -> bool:
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        further = layer is not None and int(layer[1]) in beyond
        return further or (config.tied_embeddings and name == "lm_head.weight")

    return unneeded
