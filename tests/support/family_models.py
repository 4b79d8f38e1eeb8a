"""Tiny models of every family, made by ``transformers`` itself from a seed and saved the way it saves them.

So the tensors' names and shapes, and what the config says, are theirs and not ours. Weights are large enough for greedy
text to vary and for the two best logits to be rarely close.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from tests.support.tiny_models import EOS_TOKEN_IDS, VOCAB_SIZE, write_tokenizer

SCALE: Final = 0.25
_COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": SCALE,
    "bos_token_id": None,
    "eos_token_id": EOS_TOKEN_IDS[0],
    "pad_token_id": 3,
}
_DENSE: Final[dict[str, Any]] = {"intermediate_size": 96, "num_key_value_heads": 2}
_LATENT: Final[dict[str, Any]] = {
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
_YARN: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


def _config(kind: str, *parts: dict[str, Any], **fields: Any) -> Any:
    import transformers

    merged = dict(_COMMON)
    for part in parts:
        merged |= part
    return getattr(transformers, kind)(**(merged | fields))


FAMILIES: Final[dict[str, Callable[[], Any]]] = {
    "llama": lambda: _config("LlamaConfig", _DENSE),
    "qwen2": lambda: _config("Qwen2Config", _DENSE, tie_word_embeddings=True),
    "qwen2-windows": lambda: _config(
        "Qwen2Config", _DENSE, use_sliding_window=True, sliding_window=12, max_window_layers=1
    ),
    "qwen3": lambda: _config("Qwen3Config", _DENSE, head_dim=32),
    "qwen3-moe": lambda: _config(
        "Qwen3MoeConfig",
        _DENSE,
        num_hidden_layers=3,
        mlp_only_layers=[1],
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=True,
        head_dim=32,
    ),
    "deepseek-v2": lambda: _config(
        "DeepseekV2Config",
        _LATENT,
        q_lora_rank=None,
        n_shared_experts=2,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        rope_parameters={**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    ),
    "deepseek-v3": lambda: _config(
        "DeepseekV3Config",
        _LATENT,
        q_lora_rank=48,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        num_mtp_layers=0,
        rope_parameters={**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "gpt-oss": lambda: _config(
        "GptOssConfig",
        num_hidden_layers=4,
        intermediate_size=32,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=12,
        rope_parameters={**_YARN, "truncate": False},
    ),
}


def write_family(directory: Path, name: str, seed: int = 0, *, shard_size: str = "50GB") -> Path:
    """Write the tiny model ``name`` of ``FAMILIES``, in files of at most ``shard_size``; returns ``directory``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers deprecates its own arguments
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        model: Any = AutoModelForCausalLM.from_config(FAMILIES[name](), dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in (*model.parameters(), *_corrections(model)):
                if parameter.ndim == 1:  # norms, biases, sinks: as made they say too little
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(directory, max_shard_size=shard_size)
    write_tokenizer(directory)
    return directory


def _corrections(model: Any) -> list[torch.Tensor]:
    """What is stored although it is no parameter."""
    return [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]
