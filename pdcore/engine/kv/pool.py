"""The KV cache as tensors over memory that somebody else owns (a region other processes may map)."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdcore.engine.kv.layout import KvLayout

Indices = TypeVar("Indices", Tensor, NDArray[np.int64])

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def bytes_needed(layout: KvLayout, blocks: int) -> int:
    """Bytes of a buffer that holds ``blocks`` blocks."""
    return layout.block_bytes * blocks


class KvPool:
    """``tensor`` is ``[blocks, layers, 2, block_size, kv_heads, head_dim]``, sharing ``buffer``'s memory.

    The buffer must be writable, hold at least ``bytes_needed``, and outlive the pool. Nothing is initialised: memory
    that no token was written to may hold anything, also NaN.
    """

    def __init__(self, layout: KvLayout, blocks: int, buffer: memoryview | bytearray) -> None:
        needed = bytes_needed(layout, blocks)
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise ValueError("the buffer of a KV pool must be writable")
        if view.nbytes < needed:
            raise ValueError(f"{blocks} KV blocks need {needed} bytes, the buffer has {view.nbytes}")
        self.layout = layout
        self.shape = shape = layout.dense_shape()
        if shape.order != "token":
            raise ValueError(f"attention cannot read a pool in {shape.order} order")
        self.blocks = blocks
        flat = torch.frombuffer(view[:needed], dtype=DTYPES[shape.dtype_name])
        self._rows = flat.view(-1, shape.kv_heads * shape.head_dim)
        self.tensor = flat.view(blocks, shape.layers, 2, shape.block_size, shape.kv_heads, shape.head_dim)

    def __repr__(self) -> str:
        return f"KvPool({self.blocks} blocks of {self.shape.block_size} tokens, {self.shape.dtype_name})"

    def slots(self, block_ids: Indices, offsets: Indices) -> Indices:
        """Where tokens lie: the row of token ``offsets[i]`` of block ``block_ids[i]``, the same for every layer."""
        return block_ids * (self.shape.layers * 2 * self.shape.block_size) + offsets

    def keys(self, layer: int) -> Tensor:
        """The rows ``[*, kv_heads * head_dim]`` in which a slot's number finds its keys of ``layer``."""
        return self._rows[layer * 2 * self.shape.block_size :]

    def values(self, layer: int) -> Tensor:
        """The same for values."""
        return self._rows[(layer * 2 + 1) * self.shape.block_size :]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store one token's keys and values, ``[tokens, kv_heads, head_dim]`` each, in each of ``slots``."""
        self.keys(layer).index_copy_(0, slots, keys.flatten(1))
        self.values(layer).index_copy_(0, slots, values.flatten(1))

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values in ``slots``, ``[slots, kv_heads, head_dim]`` each."""
        heads = (slots.shape[0], self.shape.kv_heads, self.shape.head_dim)
        keys = self.keys(layer).index_select(0, slots).view(heads)
        return keys, self.values(layer).index_select(0, slots).view(heads)
