"""Prompts that begin alike share the blocks in which they do. Pure.

A block's key names all tokens from the first to its last: a digest over the key of the block before it and its own
tokens. Only full, computed blocks are remembered, and nobody writes into them again. The last token of a prompt is
always computed, because somebody has to say what comes next.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Final

from pdcore.engine.kv.block_groups import BlockGroups
from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.scheduler.request import Request

_DIGEST_BYTES: Final = 16


class Prefixes:
    """What requests have computed, for those to come. ``asked`` and ``reused`` count prompt tokens since the start.

    ValueError for KV groups whose blocks hold different numbers of tokens.
    """

    def __init__(self, blocks: BlockGroups) -> None:
        if len(set(blocks.block_sizes)) != 1:
            raise ValueError(f"blocks of {blocks.block_sizes} tokens cannot be found by one key")
        self._blocks = blocks
        self._block_size = blocks.block_sizes[0]
        self.asked = 0
        self.reused = 0

    def find(self, request: Request) -> BlockLists:
        """The blocks that hold the beginning of what ``request`` has to compute, in every KV group."""
        most = (request.known - 1) // self._block_size
        self._name(request, most)
        return self._blocks.find(request.keys[:most])

    def take(self, request: Request, found: BlockLists) -> None:
        """``request`` has got the ``found`` blocks, and need not compute their tokens."""
        count = len(found[0])
        request.computed = count * self._block_size
        request.remembered = count
        if not request.retractions:
            request.cached = request.computed
            self.asked += request.known
            self.reused += request.cached

    def computed(self, request: Request) -> None:
        """Remember the blocks of ``request`` that are full by now."""
        full = request.computed // self._block_size
        if full > request.remembered:
            self._name(request, full)
            for position in range(request.remembered, full):
                self._blocks.remember(request.blocks, position, request.keys[position])
            request.remembered = full

    def _name(self, request: Request, count: int) -> None:
        """Make the keys of the first ``count`` blocks."""
        size, keys = self._block_size, request.keys
        for position in range(len(keys), count):
            digest = hashlib.blake2b(keys[-1] if keys else b"", digest_size=_DIGEST_BYTES)
            digest.update(array("Q", request.tokens(position * size, size)))
            keys.append(digest.digest())
