"""Copies for tests that need some and have no pair of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdcore.engine.transfer.plan import WriteOps, coalesced


def copy_blocks(source: Sequence[int], destination: Sequence[int], block_bytes: int) -> WriteOps:
    """Copies that move block ``source[i]`` to block ``destination[i]``; runs adjacent on both sides become one."""
    if len(source) != len(destination):
        raise ValueError(f"{len(source)} source blocks cannot fill {len(destination)} destination blocks")
    src = np.asarray(source, dtype=np.int64) * block_bytes
    return coalesced(
        WriteOps(src, np.asarray(destination, dtype=np.int64) * block_bytes, np.full_like(src, block_bytes))
    )
