"""The KV cache as tensors over memory that somebody else owns: a region other processes may map, or a device's.

A token of one group has a *slot* in it: a row number for each kind of row that the group's entries have, the same for
every layer. Dense attention has one kind, latent attention two. What is read comes head by head, as kernels want it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pdcore.engine.kv.layout import KvGroup, KvLayout
from pdcore.engine.kv.region import group_offsets, pool_bytes

LATENT: Final = "latent"
"""The entry that is both a layer's values and, with the entry behind it, its keys."""
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Slots = tuple[Tensor, ...]
"""Where tokens lie: for each kind of row, the numbers of their rows."""
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of ``heads`` items of ``dim`` elements."""

    heads: int
    dim: int

    @property
    def width(self) -> int:
        """Elements of one row."""
        return self.heads * self.dim


@dataclass(frozen=True, slots=True)
class _Rows:
    """One entry's rows ``[*, heads * dim]``, the same memory as items ``[*, dim]``, and which of a slot's numbers is
    theirs."""

    rows: Tensor
    items: Tensor
    kind: int


class GroupPool:
    """The blocks of one group. ``kinds`` are those of its rows."""

    def __init__(self, group: KvGroup, flat: Tensor) -> None:
        self.group = group
        self._elements = group.block_bytes // group.entries[0].itemsize
        self.dtype = flat.dtype
        kinds = [Kind(entry.heads, entry.dim) for entry in group.entries]
        self.kinds = tuple(dict.fromkeys(kinds))
        for kind in self.kinds:
            if self._elements % kind.width:
                raise ValueError(f"rows of {kind.width} elements do not fill a block of {self._elements}")
        self._layers: dict[int, list[_Rows]] = {}
        for entry, place, kind in zip(group.entries, group.places, kinds, strict=True):
            first = place.base // entry.itemsize
            cut = flat[first : first + (flat.numel() - first) // kind.width * kind.width]
            rows = _Rows(cut.view(-1, kind.width), cut.view(-1, kind.dim), self.kinds.index(kind))
            self._layers.setdefault(entry.layer, []).append(rows)

    @property
    def latent(self) -> bool:
        """Whether what is kept is a latent and a rotated key instead of keys and values."""
        return self.group.entries[0].name == LATENT

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.group.block_size

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are kept here."""
        return tuple(self._layers)

    def slots(self, block_ids: Indices, offsets: Indices, device: torch.device) -> Slots:
        """The slots of token ``offsets[i]`` of block ``block_ids[i]``, to write."""
        return tuple(
            torch.from_numpy(block_ids * (self._elements // kind.width) + offsets).to(device)
            for kind in self.kinds
        )

    def contexts(self, block_ids: Indices, offsets: Indices, device: torch.device) -> Slots:
        """The items ``[sequences, heads, tokens]`` of token ``offsets[i, j]`` of block ``block_ids[i, j]``, to read."""
        found = []
        for kind in self.kinds:
            rows = (block_ids * (self._elements // kind.width) + offsets)[:, None, :]
            items = rows * kind.heads + np.arange(kind.heads)[:, None]
            found.append(torch.from_numpy(items).to(device))
        return tuple(found)

    def write(self, layer: int, slots: Slots, rows: Sequence[Tensor]) -> None:
        """Store ``rows``, ``[tokens, heads * dim]`` for each of the layer's entries, in ``slots``."""
        for entry, new in zip(self._layers[layer], rows, strict=True):
            entry.rows.index_copy_(0, slots[entry.kind], new)

    def read(self, layer: int, contexts: Slots) -> list[Tensor]:
        """Copies of ``contexts``, ``[sequences, heads, tokens, dim]`` for each of the layer's entries."""
        # The gather that looks embeddings up is the fastest of torch's on a CPU.
        return [F.embedding(contexts[entry.kind], entry.items) for entry in self._layers[layer]]


class KvPool:
    """One :class:`GroupPool` per group, sharing ``buffer``'s memory, each on a page of its own.

    The buffer is the host's, or a flat uint8 tensor on the device that computes. It must be writable, hold at least
    ``region.pool_bytes``, and outlive the pool. Nothing is initialised: memory that no token was written to may hold
    anything, also NaN.
    """

    def __init__(
        self, layout: KvLayout, blocks: Sequence[int], buffer: memoryview | bytearray | Tensor
    ) -> None:
        needed = pool_bytes(layout, blocks)
        view = buffer if isinstance(buffer, Tensor) else memoryview(buffer).cast("B")
        if isinstance(view, memoryview) and view.readonly:
            raise ValueError("the buffer of a KV pool must be writable")
        if view.nbytes < needed:
            raise ValueError(
                f"{_counted(blocks)} KV blocks need {needed} bytes, the buffer has {view.nbytes}"
            )
        self.layout = layout
        self.blocks = tuple(blocks)
        self.dtype_name = _dtype_name(layout)
        dtype = DTYPES[self.dtype_name]
        groups = []
        for group, count, offset in zip(layout.groups, blocks, group_offsets(layout, blocks), strict=True):
            part = view[offset : offset + count * group.block_bytes]
            groups.append(GroupPool(group, _of_type(part, dtype)))
        self.groups = tuple(groups)
        self.group_of = {layer: index for index, group in enumerate(groups) for layer in group.layers}

    def __repr__(self) -> str:
        sizes = sorted({group.block_size for group in self.groups})
        return f"KvPool({_counted(self.blocks)} blocks of {_counted(sizes)} tokens, {self.dtype_name})"

    def of(self, layer: int) -> GroupPool:
        """The pool of the group that keeps ``layer``."""
        return self.groups[self.group_of[layer]]


def _of_type(part: memoryview | Tensor, dtype: torch.dtype) -> Tensor:
    return part.view(dtype) if isinstance(part, Tensor) else torch.frombuffer(part, dtype=dtype)


def _dtype_name(layout: KvLayout) -> str:
    names = {entry.dtype_name for group in layout.groups for entry in group.entries}
    if len(names) != 1:
        raise ValueError(f"attention cannot read a pool of {' and '.join(sorted(names))}")
    if orders := {group.order for group in layout.groups} - {"token"}:
        raise ValueError(f"attention cannot read a pool in {orders.pop()} order")
    return names.pop()


def _counted(counts: Sequence[int]) -> str:
    return "+".join(map(str, counts))
