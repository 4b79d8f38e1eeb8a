"""Which of vLLM-Ascend's Mooncake connectors a model needs, by its config and never by its name. Pure.

Both roles must use the same one, so the answer is kept in the generation: a config that becomes readable later cannot
make two members choose differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pdcore.group.flags import Flags
from pdcore.group.model_config import ModelConfig, overridden

Layout = Literal["standard", "hybrid"]
CONNECTORS: Final[Mapping[Layout, str]] = {
    "standard": "MooncakeConnectorV1",
    "hybrid": "MooncakeHybridConnector",
}

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")


def connector_for(config: ModelConfig | None, prefill: Flags) -> str:
    """The connector for a model of ``config`` when prefill is started with these flags. The hybrid one also serves
    standard layouts, so it is taken wherever the config cannot be read: flags alone cannot prove that it is standard."""
    return CONNECTORS[layout_of(config, prefill)]


def layout_of(config: ModelConfig | None, prefill: Flags) -> Layout:
    """How the model's KV cache is laid out."""
    seen = overridden(config, prefill)
    return "hybrid" if seen is None or _is_hybrid(seen.fields) else "standard"


def _is_hybrid(fields: Mapping[str, Any]) -> bool:
    nested = [fields[name] for name in _NESTED if isinstance(fields.get(name), Mapping)]
    if any(_is_hybrid(one) for one in nested):
        return True
    own = {name: value for name, value in fields.items() if name not in _NESTED}
    return ModelConfig(own).is_recurrent or _compresses(own.get("compress_ratios")) or _is_deepseek_v4(own)


def _compresses(ratios: object) -> bool:
    if isinstance(ratios, Mapping):
        return any(_compresses(one) for one in ratios.values())
    if isinstance(ratios, list):
        return any(_compresses(one) for one in ratios)
    return isinstance(ratios, int | float) and not isinstance(ratios, bool) and ratios > 0


def _is_deepseek_v4(fields: Mapping[str, Any]) -> bool:
    architectures = fields.get("architectures")
    named = architectures if isinstance(architectures, list) else []
    return fields.get("model_type") == "deepseek_v4" or any(
        str(one).startswith("DeepseekV4") for one in named
    )
