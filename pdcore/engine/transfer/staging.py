"""KV of a device through engines that reach host memory only: a mirror of the pool in host memory, as large as it.

Prefill copies the blocks that a write reads from the device into the mirror in front of the write, in the writer's
thread. Decode copies the blocks of a hand-off from the mirror to the device once it has arrived, before it says so, so
before any step that uses them on any rank.

Why nothing is mixed up: both memories have the same blocks at the same places, and whoever holds a block holds it in
both. Whole blocks are copied, never a byte of another one. Prefill's copy runs within a write, and the write's pin holds
the block until it has ended, so no late copy can meet the block's next owner. Decode's runs within ``poll``, between the
proof that nothing of the hand-off lands any more and the event that lets the block go, and is over when ``poll`` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.transfer.device_memory import bound
from pdcore.engine.transfer.engine import EngineCaps, Linked, Lost, Receiver, Sender, TransferEngine
from pdcore.engine.transfer.memory import Region, free_on_host, private
from pdcore.engine.transfer.plan import Buffer, RegionShape, WriteOps
from pdcore.errors import ConfigError

Span = tuple[int, int]
"""Bytes from … up to …, of a pool and of its mirror."""


def check_room(nbytes: int, device: object) -> None:
    """ConfigError unless the host has ``nbytes`` for a mirror now. Ranks that start together look at the same memory."""
    free = free_on_host()
    if nbytes > free:
        raise ConfigError(
            f"--kv-tokens / PDCORE_KV_TOKENS: the KV cache on {device} needs a mirror of {nbytes >> 20} MiB in host memory, "
            f"which has {free >> 20} MiB: lower it, or name a --transfer-engine that reads the device's memory"
        )


class Blocks:
    """Where the blocks of a rank's pool lie: which spans must be copied, neighbours joined. Pure."""

    def __init__(self, shape: RegionShape) -> None:
        self._groups = shape.layout.groups
        self._offsets = [shape.group_offset(index) for index in range(len(self._groups))]
        self._counts = shape.blocks

    def read_by(self, ops: WriteOps) -> Iterator[Span]:
        """Whole blocks out of which ``ops`` copy."""
        for group, offset, count in zip(self._groups, self._offsets, self._counts, strict=True):
            size = group.block_bytes
            inside = (ops.src_off >= offset) & (ops.src_off < offset + count * size)
            first = (ops.src_off[inside] - offset) // size
            last = (ops.src_off[inside] + ops.length[inside] - 1 - offset) // size
            touched = np.zeros(count + 1, np.int64)
            np.add.at(touched, first, 1)
            np.add.at(touched, last + 1, -1)
            yield from _joined(np.flatnonzero(touched.cumsum()).tolist(), size, offset)

    def of(self, lists: BlockLists, tokens: int) -> Iterator[Span]:
        """The blocks of a hand-off of ``tokens`` tokens that attention can still look at."""
        for group, offset, blocks in zip(self._groups, self._offsets, lists, strict=True):
            live = group.live_blocks(tokens)
            yield from _joined(sorted(blocks[live.start : live.stop]), group.block_bytes, offset)


def _joined(blocks: Iterable[int], size: int, offset: int) -> Iterator[Span]:
    """``blocks`` ascend."""
    run: list[int] = []
    for block in blocks:
        if run and block != run[-1] + 1:
            yield offset + run[0] * size, offset + (run[-1] + 1) * size
            run = []
        run.append(block)
    if run:
        yield offset + run[0] * size, offset + (run[-1] + 1) * size


def copy(target: Tensor, source: Tensor, spans: Iterable[Span]) -> None:
    """One of the two is on a device. Done on return: the host side may be written again at once."""
    for first, stop in spans:
        target[first:stop].copy_(source[first:stop])


def tensor_over(memory: memoryview) -> Tensor:
    """The same bytes, flat."""
    return torch.frombuffer(memory, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class StagedEngine:
    """``inner`` for a pool of ``shape`` on a device: a prefill rank's writes go by way of a mirror. Decode's end is
    ``inner``'s own, over a region that is the mirror; ``staged_side`` does the rest."""

    inner: TransferEngine
    shape: RegionShape

    @property
    def name(self) -> str:
        """As without a mirror: peers need not know."""
        return self.inner.name

    @property
    def caps(self) -> EngineCaps:
        """Its own."""
        return self.inner.caps

    def receiver(self, region: Region) -> Receiver:
        """Decode's end."""
        return self.inner.receiver(region)

    def sender(self, source: Buffer, runtime_dir: Path) -> StagedSender:
        """Prefill's end; ConfigError when the host has no room for the mirror."""
        assert isinstance(source, Tensor), "the pool is a device's"
        check_room(source.nbytes, source.device)
        mirror = private(source.nbytes, self.inner.caps.alignment)
        return StagedSender(
            self.inner.sender(mirror, runtime_dir), source, tensor_over(mirror), Blocks(self.shape)
        )


class StagedSender:
    """See :class:`pdcore.engine.transfer.engine.Sender`. Threads that write the same block copy the same bytes."""

    def __init__(self, inner: Sender, pool: Tensor, mirror: Tensor, blocks: Blocks) -> None:
        self._inner = inner
        self._pool = pool
        self._mirror = mirror
        self._blocks = blocks

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._inner)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def endpoint(self) -> dict[str, object]:
        """See the seam."""
        return self._inner.endpoint()

    def drain(self) -> Sequence[Linked | Lost]:
        """See the seam."""
        return self._inner.drain()

    def pollables(self) -> list[int]:
        """See the seam."""
        return self._inner.pollables()

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        """From the device into the mirror, then as ``inner`` does."""
        with bound(self._pool.device):
            copy(self._mirror, self._pool, self._blocks.read_by(ops))
        self._inner.write(token, ops, seq)

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        """See the seam."""
        self._inner.write_bytes(token, offset, data, seq)

    def inline_bytes(self, token: bytes) -> int:
        """None: a copy waits for what the device computes."""
        return 0

    def ring(self, token: bytes, seq: int) -> bool:
        """See the seam."""
        return self._inner.ring(token, seq)

    def announce(self, token: bytes) -> None:
        """The inner engine's."""
        self._inner.announce(token)

    def release(self, token: bytes) -> None:
        """See the seam."""
        self._inner.release(token)
