"""How the bytes of a KV cache lie in memory. Needs no tensor library.

The pool is block-major: one block is one contiguous run that holds keys and values of ``block_size`` tokens for *all*
layers, as ``[layer, key|value, token, kv_head, head_dim]``. Block ``i`` lies at ``i * block_bytes``. One token's bytes
are therefore spread over its block, and the unit of every transfer is the whole block.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass, fields
from typing import Final

LAYOUT_VERSION: Final = 1
"""Changes only when the bytes of a block do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Shape and element type of one KV block; equal fingerprints mean bytes can be copied as they are."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    itemsize: int
    dtype_name: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "dtype_name" and value < 1:
                raise ValueError(f"{field.name} must be at least 1, not {value}")

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes over all layers, keys and values."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one block; also the distance between the starts of two neighbouring blocks."""
        return self.token_bytes * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens need."""
        return -(-tokens // self.block_size)

    def fingerprint(self) -> str:
        """A short hash of every field and of the order of dimensions above."""
        text = f"block-major/{LAYOUT_VERSION}:" + ",".join(str(value) for value in astuple(self))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
