"""How large a model is, from its config. Pure."""

from __future__ import annotations

from pdcore.engine.model.config import ModelConfig


def weight_bytes(config: ModelConfig, *, of_a_step: bool = False) -> int:
    """Bytes of all parameters in float32; a tied embedding counts once.

    ``of_a_step``: those that a step reads as a whole, which the input embedding is not.
    """
    heads = 2 * config.heads + 2 * config.kv_heads
    layer = config.hidden * (config.head_dim * heads + 3 * config.intermediate + 2)
    ends = (1 if of_a_step or config.tied_embeddings else 2) * config.vocab_size + 1
    return 4 * (config.layers * layer + ends * config.hidden)
