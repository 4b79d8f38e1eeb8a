"""Weights from a directory's safetensors files, checked against what the config says they must be.

Of a tensor that ranks share, only the own rows or columns are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pdcore.engine.device import Device
from pdcore.engine.kv.pool import DTYPES
from pdcore.engine.model.causal import CausalModel, Layer, Linear
from pdcore.engine.model.config import ModelConfig
from pdcore.engine.model.directory import read_json, refuse, require_directory
from pdcore.engine.model.rope import frequencies
from pdcore.engine.model.shard import WHOLE, Shard, shard_problems
from pdcore.errors import ConfigError

_FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_PICKLED: Final = "pytorch_model.bin"

_ALL: Final = slice(None)

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
    with ExitStack() as stack:
        weights = _open(directory, stack, device.torch_device, DTYPES[dtype])
        layers = []
        for number in range(config.layers):
            layers.append(_layer(weights, config, shard, f"model.layers.{number}."))
            if progress is not None:
                progress(number + 1, config.layers)
        embedding = weights.take("model.embed_tokens.weight", config.vocab_size, config.hidden)
        final_norm = weights.take("model.norm.weight", config.hidden)
        if config.tied_embeddings:
            head = embedding
            weights.ignore("lm_head.weight")
        else:
            head = weights.take("lm_head.weight", config.vocab_size, config.hidden)
        weights.refuse_unused()
    frequency, rope_scale = frequencies(config.rope, config.head_dim)
    return CausalModel(
        config=shard.sizes(config),
        embedding=embedding,
        layers=tuple(layers),
        final_norm=final_norm,
        head=head,
        frequency=frequency.to(device.torch_device),
        rope_scale=rope_scale,
    )


@dataclass(frozen=True, slots=True)
class _Weights:
    """The tensors of all files by name, each taken once. ``unused`` shrinks as they are."""

    directory: Path
    files: Mapping[str, Any]  # tensor name -> open safetensors file
    places: Mapping[str, str]  # tensor name -> file name
    unused: set[str]
    device: torch.device
    dtype: torch.dtype

    def take(self, name: str, *shape: int, part: tuple[slice, ...] = (_ALL,)) -> Tensor:
        """``part`` of the tensor on its device; the whole tensor must exist and have ``shape``."""
        if name not in self.files:
            raise refuse(self.directory, f"tensor {name} is missing from the weights")
        self.unused.discard(name)
        try:
            stored = self.files[name].get_slice(name)
            found = stored.get_shape()
            tensor: Tensor | None = stored[part] if found == list(shape) else None
        except SafetensorError as wrong:
            raise refuse(
                self.directory, f"{self.places[name]}: tensor {name} cannot be read: {wrong}"
            ) from wrong
        if tensor is None:
            raise refuse(
                self.directory,
                f"{self.places[name]}: tensor {name} has shape {found}, the config says {list(shape)}",
            )
        if tensor.dtype not in _FLOATS:
            raise refuse(
                self.directory,
                f"{self.places[name]}: tensor {name} has dtype {tensor.dtype}, which is not supported",
            )
        return tensor.to(device=self.device, dtype=self.dtype)

    def ignore(self, name: str) -> None:
        """Some writers store ``name`` although it is not needed."""
        self.unused.discard(name)

    def refuse_unused(self) -> None:
        """A weight nobody asked for means a model that is computed differently."""
        left = sorted(name for name in self.unused if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise refuse(
                self.directory, f"{self.places[left[0]]}: tensor {left[0]} has no place in this model"
            )


def _open(directory: Path, stack: ExitStack, device: torch.device, dtype: torch.dtype) -> _Weights:
    require_directory(directory)
    if (directory / _INDEX).exists():
        index = _weight_map(directory)
        opened = {file: _open_file(directory, file, stack) for file in sorted(set(index.values()))}
    elif (directory / _WHOLE).exists():
        opened = {_WHOLE: _open_file(directory, _WHOLE, stack)}
        index = dict.fromkeys(opened[_WHOLE].keys(), _WHOLE)
    else:
        pickled = (directory / _PICKLED).exists()
        why = f"; {_PICKLED} is not read because unpickling runs code" if pickled else ""
        raise refuse(directory, f"there is neither {_WHOLE} nor {_INDEX}{why}")
    within = {file: frozenset(handle.keys()) for file, handle in opened.items()}
    for name, file in index.items():
        if name not in within[file]:
            raise refuse(directory, f"{file}: tensor {name} is missing, but {_INDEX} places it there")
    return _Weights(
        directory=directory,
        files={name: opened[file] for name, file in index.items()},
        places=index,
        unused=set(index),
        device=device,
        dtype=dtype,
    )


def _weight_map(directory: Path) -> dict[str, str]:
    places = read_json(directory, _INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise refuse(directory, f"{_INDEX} has no usable weight_map")
    outside = [file for file in places.values() if Path(file).name != file]
    if outside:
        raise refuse(directory, f"{_INDEX} names {outside[0]!r}, which is not a file of this directory")
    return places


def _open_file(directory: Path, file: str, stack: ExitStack) -> Any:
    try:
        return stack.enter_context(safe_open(directory / file, framework="pt"))
    except FileNotFoundError as wrong:
        raise refuse(directory, f"{file} is missing, but {_INDEX} names it") from wrong
    except (SafetensorError, OSError) as wrong:
        raise refuse(directory, f"{file} is truncated or no safetensors file: {wrong}") from wrong


def _layer(weights: _Weights, config: ModelConfig, shard: Shard, prefix: str) -> Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    size = config.head_dim
    query = _Part(config.heads * size, _scaled(shard.share(config.heads), size))
    key = _Part(config.kv_heads * size, _scaled(shard.kv_heads(config.kv_heads), size))
    middle = _Part(config.intermediate, _scaled(shard.share(config.intermediate), 1))
    adds_bias = shard.tp == 0  # what ranks compute from their columns is summed, a bias once
    return Layer(
        input_norm=weights.take(prefix + "input_layernorm.weight", config.hidden),
        qkv=_stacked(
            weights,
            {f"{attention}q_proj": query, f"{attention}k_proj": key, f"{attention}v_proj": key},
            config.hidden,
            config.attention_bias,
        ),
        qk_norm=_qk_norm(weights, config, shard, attention) if config.qk_norm else None,
        out=_summed(weights, f"{attention}o_proj", query, config.hidden, config.attention_bias, adds_bias),
        mlp_norm=weights.take(prefix + "post_attention_layernorm.weight", config.hidden),
        gate_up=_stacked(
            weights, {f"{mlp}gate_proj": middle, f"{mlp}up_proj": middle}, config.hidden, config.mlp_bias
        ),
        down=_summed(weights, f"{mlp}down_proj", middle, config.hidden, config.mlp_bias, adds_bias),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The ``own`` of ``whole`` rows or columns."""

    whole: int
    own: slice


def _scaled(heads: range, rows: int) -> slice:
    """The rows of ``heads``, each of which has ``rows``."""
    return slice(heads.start * rows, heads.stop * rows)


def _stacked(weights: _Weights, parts: Mapping[str, _Part], inputs: int, biased: bool) -> Linear:
    """The own rows of the projections ``parts`` of one input, one below the other."""
    matrices = [
        weights.take(f"{name}.weight", part.whole, inputs, part=(part.own,)) for name, part in parts.items()
    ]
    biases = [
        weights.take(f"{name}.bias", part.whole, part=(part.own,)) for name, part in parts.items() if biased
    ]
    return Linear(weight=torch.cat(matrices), bias=torch.cat(biases) if biased else None)


def _summed(
    weights: _Weights, name: str, inputs: _Part, outputs: int, biased: bool, adds_bias: bool
) -> Linear:
    """The own columns of a projection: the sum over ranks is its result."""
    matrix = weights.take(f"{name}.weight", outputs, inputs.whole, part=(_ALL, inputs.own))
    bias = weights.take(f"{name}.bias", outputs) if biased else None
    return Linear(weight=matrix, bias=bias if adds_bias else None)


def _qk_norm(weights: _Weights, config: ModelConfig, shard: Shard, attention: str) -> Tensor:
    query = weights.take(f"{attention}q_norm.weight", config.head_dim)
    key = weights.take(f"{attention}k_norm.weight", config.head_dim)
    own = shard.sizes(config)
    return torch.cat((query.expand(own.heads, -1), key.expand(own.kv_heads, -1)))
