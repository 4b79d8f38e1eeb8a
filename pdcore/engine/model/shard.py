"""Which part of a model one tensor parallel rank holds. Pure, needs no tensor library.

Query heads and the rows between an MLP's two matrices are split evenly. Key/value heads are too, as far as there are
enough; where ranks outnumber them, neighbouring ranks hold the same one, the one that their query heads share.
Everything else (embeddings, norms, the output head) is on every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pdcore.engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank ``tp`` of ``tp_size``."""

    tp: int
    tp_size: int

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the bias of a projection whose columns ranks share: what they compute is summed."""
        return self.tp == 0

    def share(self, count: int) -> range:
        """This rank's part of ``count`` things that divide evenly."""
        part = count // self.tp_size
        return range(self.tp * part, (self.tp + 1) * part)

    def kv_heads(self, count: int) -> range:
        """This rank's part of ``count`` key/value heads, at least one."""
        first = self.tp * count // self.tp_size
        return range(first, first + max(count // self.tp_size, 1))

    def sizes(self, config: ModelConfig) -> ModelConfig:
        """``config`` with the heads and the intermediate size that are this rank's."""
        return replace(
            config,
            heads=len(self.share(config.heads)),
            kv_heads=len(self.kv_heads(config.kv_heads)),
            intermediate=len(self.share(config.intermediate)),
        )


WHOLE: Final = Shard(tp=0, tp_size=1)


def shard_problems(config: ModelConfig, tp_size: int) -> tuple[str, ...]:
    """Why ``tp_size`` ranks cannot share this model: a sentence for each field of config.json that does not divide."""
    even = {"num_attention_heads": config.heads, "intermediate_size": config.intermediate}
    if config.experts is not None and config.clamped_gate is None:
        even["moe_intermediate_size"] = config.experts.intermediate
    problems = _uneven(even, tp_size)
    if config.kv_heads % tp_size and tp_size % config.kv_heads:
        problems += (
            f"--tp / PDCORE_TP: num_key_value_heads {config.kv_heads} of the model neither divides by {tp_size}"
            f" nor divides it",
        )
    return problems


def _uneven(even: Mapping[str, int], tp_size: int) -> tuple[str, ...]:
    return tuple(
        f"--tp / PDCORE_TP: {name} {count} of the model does not divide by {tp_size}"
        for name, count in even.items()
        if count % tp_size
    )
