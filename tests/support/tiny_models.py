"""Small random models as Hugging Face directories, made from a seed: seconds to write, nothing to download.

Every engine test that needs tokens uses one. Greedy text from them varies, and the gap between the two best logits
is rarely under 1e-3, so token-exact comparisons hold. Needs numpy, safetensors and tokenizers only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Rope = Literal["default", "linear", "llama3", "yarn"]
Family = Literal["llama", "qwen3"]

VOCAB_SIZE: Final = 512
CONTEXT_LENGTH: Final = 2048
SCALE: Final = 0.2
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
EOS_TOKEN_IDS: Final = (2, 0)
CHAT_TEMPLATE: Final = (
    "{%- if tools %}{{- '<|im_start|>system\\ntools: ' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_ROPE: Final[Mapping[Rope, Mapping[str, object]]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    family: Family
    hidden: int = 128
    intermediate: int = 256
    layers: int = 3
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 16
    tied: bool = False
    biases: bool = False


def write_tiny_llama(
    directory: Path,
    seed: int = 0,
    *,
    tied: bool = False,
    rope: Rope = "default",
    biases: bool = False,
    shards: int = 1,
) -> Path:
    """Write a Llama of 0.6 million parameters (grouped-query attention) and return ``directory``.

    ``biases`` gives attention and MLP biases, ``shards`` more than one splits the weights behind an index.
    """
    shape = _Shape(family="llama", tied=tied, biases=biases)
    return _write(directory, shape, seed, {"rope_parameters": _rope_parameters(rope)}, shards)


def write_tiny_qwen3(directory: Path, seed: int = 0, *, tied: bool = True, rope: Rope = "default") -> Path:
    """Write a Qwen3 of 0.7 million parameters (QK-norm, heads wider than hidden / heads) and return ``directory``.

    Its config names the rotary embedding the older way, ``rope_theta`` and ``rope_scaling``.
    """
    scaling = None if rope == "default" else {"rope_type": rope, **_ROPE[rope]}
    shape = _Shape(family="qwen3", head_dim=32, kv_heads=2, tied=tied)
    return _write(directory, shape, seed + 1000, {"rope_theta": 10000.0, "rope_scaling": scaling}, shards=1)


def write_tokenizer(directory: Path) -> None:
    """Write a byte-level tokenizer of ``VOCAB_SIZE`` tokens with a ChatML template: any text can be encoded."""
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary(), merges=_merges()))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|pad|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_LENGTH,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write(directory: Path, shape: _Shape, seed: int, rope: Mapping[str, object], shards: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", {**_config(shape), **rope})
    _write_json(
        directory / "generation_config.json",
        {"do_sample": False, "eos_token_id": list(EOS_TOKEN_IDS), "pad_token_id": 3},
    )
    write_tokenizer(directory)
    _write_weights(directory, _weights(shape, seed), shards)
    return directory


def _config(shape: _Shape) -> dict[str, object]:
    architecture = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[shape.family]
    config: dict[str, object] = {
        "architectures": [architecture],
        "model_type": shape.family,
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-6,
        "initializer_range": SCALE,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.biases,
        "bos_token_id": None,
        "eos_token_id": EOS_TOKEN_IDS[0],
        "pad_token_id": 3,
    }
    if shape.family == "llama":
        config["mlp_bias"] = shape.biases
    return config


def _rope_parameters(rope: Rope) -> dict[str, object]:
    return {"rope_type": rope, "rope_theta": 10000.0, **_ROPE[rope]}


def _weights(shape: _Shape, seed: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)

    def matrix(*size: int) -> NDArray[np.float32]:
        return (random.standard_normal(size) * SCALE).astype(np.float32)

    def norm(size: int) -> NDArray[np.float32]:
        return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    projections = {
        "self_attn.q_proj": (query, shape.hidden),
        "self_attn.k_proj": (key, shape.hidden),
        "self_attn.v_proj": (key, shape.hidden),
        "self_attn.o_proj": (shape.hidden, query),
        "mlp.gate_proj": (shape.intermediate, shape.hidden),
        "mlp.up_proj": (shape.intermediate, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.intermediate),
    }
    weights = {"model.embed_tokens.weight": matrix(VOCAB_SIZE, shape.hidden)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name, size in projections.items():
            weights[f"{prefix}{name}.weight"] = matrix(*size)
            if shape.biases:
                weights[f"{prefix}{name}.bias"] = matrix(size[0])
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = norm(shape.hidden)
        if shape.family == "qwen3":
            for name in ("self_attn.q_norm", "self_attn.k_norm"):
                weights[f"{prefix}{name}.weight"] = norm(shape.head_dim)
    weights["model.norm.weight"] = norm(shape.hidden)
    if not shape.tied:
        weights["lm_head.weight"] = matrix(VOCAB_SIZE, shape.hidden)
    return weights


def _write_weights(directory: Path, weights: Mapping[str, NDArray[np.float32]], shards: int) -> None:
    if shards == 1:
        save_file(dict(weights), directory / "model.safetensors", metadata={"format": "pt"})
        return
    files = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    place = {name: files[position % shards] for position, name in enumerate(weights)}
    for file in files:
        part = {name: weights[name] for name, home in place.items() if home == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in weights.values())
    _write_json(
        directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": place}
    )


def _merges() -> list[tuple[str, str]]:
    vowels, consonants = "aeiou", "bcdfghjklmnpqrstvwxyz"
    pairs = [("\u0120", letter) for letter in sorted(vowels + consonants)]
    pairs += [(consonant, vowel) for consonant in consonants for vowel in vowels]
    pairs += [(vowel, consonant) for vowel in vowels for consonant in consonants]
    pairs += [("\u0120", letter) for letter in "ABCDEFGHIJKLMNOP"]
    return pairs


def _vocabulary() -> dict[str, int]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in _merges())]
    assert len(tokens) == VOCAB_SIZE
    return {token: number for number, token in enumerate(tokens)}


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
