"""Small groups to change one thing of, and what the rules say about them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any, Final

from pdcore.group.finding import Finding
from pdcore.group.model_config import ModelConfig
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.spec import spec_of
from pdcore.group.validation.check import examine
from pdcore.group.validation.subject import Subject
from pdcore.topology.records import Json

Document = dict[str, Any]

VERSIONS: Final[Mapping[str, str]] = {
    "vllm-ascend-mooncake": "0.23.0",
    "sglang-mooncake": "0.5.7",
    "sglang-nixl": "0.5.7",
}
LLAMA: Final[Mapping[str, Json]] = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
MLA: Final[Mapping[str, Json]] = {**LLAMA, "kv_lora_rank": 512, "n_routed_experts": 256}
RECURRENT: Final[Mapping[str, Json]] = {**LLAMA, "layer_types": ["linear_attention", "full_attention"]}
CHUNKED: Final[Mapping[str, Json]] = {**LLAMA, "attention_chunk_size": 8192}
SLIDING: Final[Mapping[str, Json]] = {**LLAMA, "sliding_window": 4096}


def group(mode: str = "vllm-nixl", **fields: Any) -> Document:
    """A 2P1D group that nothing is wrong with; ``prefill``, ``decode`` and ``router`` are put on those roles."""
    document: Document = {
        "name": "g",
        "model": "m",
        "disaggregation": {"mode": mode},
        "roles": [
            {"name": "prefill", "replicas": 2},
            {"name": "decode", "replicas": 1},
            {"name": "router", "replicas": 1},
        ],
    }
    if mode != "pdcore":
        document["backend_version"] = VERSIONS.get(mode, "0.30.0")
    if mode == "custom":
        document["backend"] = "vllm"
        role(document, "router")["protocol"] = "nixl"
    for name, value in fields.items():
        if name in ("prefill", "decode", "router"):
            role(document, name).update(copy.deepcopy(value))
        elif name == "disaggregation":
            document["disaggregation"] |= value
        else:
            document[name] = copy.deepcopy(value)
    return document


def role(document: Document, name: str) -> Document:
    """That role of ``document``."""
    found: Document = next(one for one in document["roles"] if one["name"] == name)
    return found


def pair(mode: str, prefill: list[str], decode: list[str], **fields: Any) -> Document:
    """A group whose engines have these flags."""
    return group(
        mode, prefill={"backend_parameters": prefill}, decode={"backend_parameters": decode}, **fields
    )


def environments(mode: str, prefill: dict[str, str], decode: dict[str, str], **fields: Any) -> Document:
    """A group whose engines have these environments."""
    return group(mode, prefill={"env": prefill}, decode={"env": decode}, **fields)


def judge(
    document: Document, *, model: Mapping[str, Json] | None = None, vendors: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Every finding about ``document`` for a model with that config, None for one that cannot be read."""
    config = None if model is None else ModelConfig(model)
    subject = Subject.of(spec_of(document), catalogue(), model=config, vendors=vendors)
    return tuple(examine(subject))


def codes(document: Document, **known: Any) -> list[str]:
    """The codes of :func:`judge`, the advice on ratios left out."""
    return [finding.code for finding in judge(document, **known) if finding.code != "pd_may_not_help"]
