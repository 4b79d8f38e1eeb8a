"""Attention over the paged KV cache, the seam another device's kernels go behind.

An :class:`AttentionPlan` is built once per forward pass from the batch's shape and used in every layer. The tokens that
this rank computes are its *rows*: single tokens first, longest context first, then chunks, then this rank's pieces of
the chunks that context parallel ranks share. Each part of the work is then one contiguous run of rows.

Single tokens are computed together: their contexts are gathered side by side, padded to the longest. The heads that
share a key/value head stand where a kernel expects query positions, so nothing is repeated in memory. Padding repeats
a slot that was written, because memory that was not may hold NaN, which no mask removes.

Keys and values of shared chunks are joined before anything is attended to: every rank's pool ends up with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Final, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pdcore.engine.collective import ALONE, Group
from pdcore.engine.kv.pool import KvPool
from pdcore.engine.model.context import is_shared, pieces

SPLIT_ABOVE: Final = 256
"""Contexts up to this many tokens are padded together whatever the waste: another kernel call costs more."""

Indices = NDArray[np.int64]


class Span(Protocol):
    """What attention needs to know of one sequence's part of the batch."""

    @property
    def start(self) -> int: ...
    @property
    def block_table(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows: the tokens ``first … stop - 1`` of the batch's part ``index``, counted within that part."""

    index: int
    first: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class Singles:
    """One token of each of ``stop - begin`` sequences. ``mask`` is ``[n, 1, 1, longest]``, true where attended."""

    begin: int
    stop: int
    slots: Tensor  # [n * longest]
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one sequence. Without ``slots`` they attend to themselves, without ``mask`` each of them to
    those up to itself."""

    begin: int
    stop: int
    slots: Tensor | None  # [context]
    mask: Tensor | None  # [tokens, context]


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows from ``begin`` on are pieces of shared chunks. Each rank gives ``most`` rows, padding at the end, of
    which, rank after rank, ``kept`` are real."""

    begin: int
    most: int
    kept: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How one batch attends.

    ``positions`` are the rows' within their sequences. ``slots`` is where keys and values go: those of the rows that
    are not shared, then those of all shared tokens as they are joined. ``last`` is the row of each part's last token,
    None on ranks that do not compute all of them.
    """

    runs: tuple[Run, ...]
    positions: Tensor
    slots: Tensor
    singles: tuple[Singles, ...]
    chunks: tuple[Chunk, ...]
    joined: Joined | None
    last: Tensor | None


def plan(batch: Sequence[Span], pool: KvPool, device: torch.device, cp: Group = ALONE) -> AttentionPlan:
    """Decide this rank's rows and prepare every index and mask; ValueError for a block table that is too short."""
    counts = [len(span) for span in batch]
    for span, count in zip(batch, counts, strict=True):
        if span.start + count > len(span.block_table) * pool.shape.block_size:
            raise ValueError(f"{span.start + count} tokens do not fit {len(span.block_table)} KV blocks")
    single = sorted((i for i, count in enumerate(counts) if count == 1), key=lambda i: -batch[i].start)
    several = [i for i, count in enumerate(counts) if count != 1]
    shared = [i for i in several if is_shared(counts[i], cp.size)]
    whole = [i for i in several if not is_shared(counts[i], cp.size)]
    alone = [Run(i, 0, counts[i]) for i in (*single, *whole)]
    pieces_of = [_pieces(batch, shared, cp.size, rank) for rank in range(cp.size)]
    runs = (*alone, *pieces_of[cp.rank])
    begins = list(accumulate((len(run) for run in runs), initial=0))
    bounds = _bounds([batch[i].start + 1 for i in single])
    return AttentionPlan(
        runs=runs,
        positions=_tensor(_positions(batch, runs), device),
        slots=_tensor(_positions_slots(batch, [*alone, *chain(*pieces_of)], pool), device),
        singles=tuple(
            _singles([batch[i] for i in single[begin:stop]], pool, begin, device)
            for begin, stop in pairwise(bounds)
        ),
        chunks=tuple(
            _chunk(batch[run.index], run, pool, begins[row], device)
            for row, run in enumerate(runs[len(single) :], start=len(single))
        ),
        joined=_joined(pieces_of, begins[len(alone)], device) if shared else None,
        last=_last_rows(batch, runs, device) if cp.rank == 0 else None,
    )


def attend(
    plan: AttentionPlan,
    pool: KvPool,
    layer: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cp: Group = ALONE,
) -> Tensor:
    """Store ``keys`` and ``values`` ``[rows, kv_heads, head_dim]``, and what the ``cp`` ranks have, then attend.

    ``queries`` are ``[rows, heads, head_dim]``; the result is ``[rows, heads * head_dim]``.
    """
    pool.write(layer, plan.slots, *_join(plan.joined, keys, values, cp))
    parts = [_attend_singles(part, pool, layer, queries[part.begin : part.stop]) for part in plan.singles]
    for chunk in plan.chunks:
        rows = slice(chunk.begin, chunk.stop)
        if chunk.slots is None:
            context = keys[rows], values[rows]
        else:
            context = pool.read(layer, chunk.slots)
        parts.append(_attend_chunk(chunk, queries[rows], *context))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _join(joined: Joined | None, keys: Tensor, values: Tensor, cp: Group) -> tuple[Tensor, Tensor]:
    """What is to be stored: the own rows that are not shared, and everybody's rows that are."""
    if joined is None:
        return keys, values
    mine = torch.stack((keys[joined.begin :], values[joined.begin :]), dim=1)
    padded = F.pad(mine, (0, 0, 0, 0, 0, 0, 0, joined.most - len(mine)))
    everyone = cp.all_gather(padded).flatten(0, 1).index_select(0, joined.kept)
    own = torch.stack((keys[: joined.begin], values[: joined.begin]), dim=1)
    both = torch.cat((own, everyone))
    return both[:, 0], both[:, 1]


def _attend_singles(part: Singles, pool: KvPool, layer: int, queries: Tensor) -> Tensor:
    count, heads, head_dim = queries.shape
    kv_heads = pool.shape.kv_heads
    keys, values = pool.read(layer, part.slots)
    attended = F.scaled_dot_product_attention(
        queries.reshape(count, kv_heads, heads // kv_heads, head_dim),
        keys.view(count, -1, kv_heads, head_dim).transpose(1, 2),
        values.view(count, -1, kv_heads, head_dim).transpose(1, 2),
        attn_mask=part.mask,
    )
    return attended.reshape(count, heads * head_dim)


def _attend_chunk(chunk: Chunk, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    attended = F.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return attended.squeeze(0).transpose(0, 1).flatten(1)


def _bounds(contexts: Sequence[int]) -> list[int]:
    """Where to cut sequences of descending context so that none is padded to more than twice its length."""
    if not contexts:
        return []
    bounds = [0]
    for i, context in enumerate(contexts):
        longest = contexts[bounds[-1]]
        if longest > SPLIT_ABOVE and context * 2 < longest:
            bounds.append(i)
    return [*bounds, len(contexts)]


def _pieces(batch: Sequence[Span], shared: Iterable[int], ranks: int, rank: int) -> list[Run]:
    return [Run(i, piece.start, piece.stop) for i in shared for piece in pieces(len(batch[i]), ranks, rank)]


def _joined(pieces_of: Sequence[Sequence[Run]], begin: int, device: torch.device) -> Joined:
    counts = [sum(len(run) for run in runs) for runs in pieces_of]
    most = max(counts)
    kept = np.concatenate([np.arange(count) + rank * most for rank, count in enumerate(counts)])
    return Joined(begin=begin, most=most, kept=_tensor(kept, device))


def _singles(spans: Sequence[Span], pool: KvPool, begin: int, device: torch.device) -> Singles:
    lengths = np.array([span.start + 1 for span in spans])
    longest = spans[0].start + 1
    size, blocks = pool.shape.block_size, pool.layout.blocks_for(longest)
    tables = np.zeros((len(spans), blocks), dtype=np.int64)
    for row, span in zip(tables, spans, strict=True):
        known = _table(span.block_table)[:blocks]
        row[: len(known)] = known
    slots = pool.slots(tables[:, :, None], np.arange(size)).reshape(len(spans), -1)[:, :longest]
    attended = np.arange(longest) < lengths[:, None]
    return Singles(
        begin=begin,
        stop=begin + len(spans),
        slots=_tensor(np.where(attended, slots, slots[:, :1]).ravel(), device),
        mask=_tensor(attended[:, None, None, :], device),
    )


def _chunk(span: Span, run: Run, pool: KvPool, begin: int, device: torch.device) -> Chunk:
    stop = begin + len(run)
    if span.start == 0 and len(run) == len(span):
        return Chunk(begin=begin, stop=stop, slots=None, mask=None)
    before, context = span.start + run.first, span.start + run.stop
    slots = _tensor(_slots(span.block_table, np.arange(context), pool), device)
    mask = torch.ones(context - before, context, dtype=torch.bool).tril(before)
    return Chunk(begin=begin, stop=stop, slots=slots, mask=mask.to(device))


def _last_rows(batch: Sequence[Span], runs: Sequence[Run], device: torch.device) -> Tensor:
    """For each part of ``batch``, the row of its last token among those of ``runs``."""
    rows = [0] * len(batch)
    end = 0
    for run in runs:
        end += len(run)
        if run.stop == len(batch[run.index]):
            rows[run.index] = end - 1
    return torch.tensor(rows, device=device)


def _positions(batch: Sequence[Span], runs: Iterable[Run]) -> Indices:
    """The positions of the runs' tokens, one after the other."""
    every: list[int] = []
    for run in runs:
        start = batch[run.index].start
        every.extend(range(start + run.first, start + run.stop))
    return np.array(every)


def _positions_slots(batch: Sequence[Span], runs: Iterable[Run], pool: KvPool) -> Indices:
    """The slots of the runs' tokens, one after the other."""
    size = pool.shape.block_size
    blocks: list[int] = []
    for run in runs:
        span = batch[run.index]
        table = span.block_table
        blocks.extend(table[at // size] for at in range(span.start + run.first, span.start + run.stop))
    return pool.slots(np.array(blocks), _positions(batch, runs) % size)


def _slots(block_table: tuple[int, ...], positions: Indices, pool: KvPool) -> Indices:
    size = pool.shape.block_size
    return pool.slots(_table(block_table)[positions // size], positions % size)


@lru_cache(maxsize=4096)
def _table(block_table: tuple[int, ...]) -> Indices:
    """A request's table is the same from step to step until it grows."""
    return np.array(block_table, dtype=np.int64)


def _tensor(indices: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(indices).to(device)
