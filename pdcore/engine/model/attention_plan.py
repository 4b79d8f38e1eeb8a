"""How one batch attends: every index and mask of a forward pass, decided once and used in every layer.

The tokens that this rank computes are its *rows*: single tokens first, longest context first, then chunks, then this
rank's pieces of the chunks that context parallel ranks share. Each part of the work is then one contiguous run of rows.

Layers that look at a window of tokens are of another KV group than those that look at all of them. Rows are the same
for all groups; what they read, and what is masked, is each group's own.

Contexts of single tokens are padded to the longest. Padding repeats a slot that was written, because memory that was
not may hold NaN, which no mask removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pdcore.engine.collective import ALONE, Group
from pdcore.engine.kv.blocks import BlockLists
from pdcore.engine.kv.pool import GroupPool, KvPool, Slots
from pdcore.engine.model.context import is_shared, pieces

SPLIT_ABOVE: Final = 256
"""Contexts up to this many tokens are padded together whatever the waste: another kernel call costs more."""

Indices = NDArray[np.int64]


class Span(Protocol):
    """What attention needs to know of one sequence's part of the batch."""

    @property
    def start(self) -> int: ...
    @property
    def block_tables(self) -> BlockLists: ...
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
    """One token of each of ``stop - begin`` sequences. ``bias`` is ``[n, 1, 1, longest]``: 0 where attended, else minus
    infinity; None where nothing is padded."""

    begin: int
    stop: int
    context: Slots
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one sequence. Without ``context`` they attend to themselves, without ``mask`` each of them to
    those up to itself."""

    begin: int
    stop: int
    context: Slots | None
    mask: Tensor | None  # [tokens, context]


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows from ``begin`` on are pieces of shared chunks. Each rank gives ``most`` rows, padding at the end, of
    which, rank after rank, ``kept`` are real."""

    begin: int
    most: int
    kept: Tensor


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What one KV group's layers do. ``slots`` is where new keys and values go: those of the rows that are not
    shared, then those of all shared tokens as they are joined."""

    slots: Slots
    singles: tuple[Singles, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How one batch attends: ``groups`` in the layout's order.

    ``positions`` are the rows' within their sequences. ``last`` is the row of each part's last token, None on ranks
    that do not compute all of them.
    """

    runs: tuple[Run, ...]
    positions: Tensor
    groups: tuple[GroupPlan, ...]
    joined: Joined | None
    last: Tensor | None


def plan(batch: Sequence[Span], pool: KvPool, device: torch.device, cp: Group = ALONE) -> AttentionPlan:
    """Decide this rank's rows and prepare every index and mask; ValueError for a block table that is too short."""
    _check_tables(batch, pool)
    counts = [len(span) for span in batch]
    single = sorted((i for i, count in enumerate(counts) if count == 1), key=lambda i: -batch[i].start)
    several = [i for i, count in enumerate(counts) if count != 1]
    shared = [i for i in several if is_shared(counts[i], cp.size)]
    whole = [i for i in several if not is_shared(counts[i], cp.size)]
    alone = [Run(i, 0, counts[i]) for i in (*single, *whole)]
    pieces_of = [_pieces(batch, shared, cp.size, rank) for rank in range(cp.size)]
    rows = _Rows(batch, single, (*alone, *pieces_of[cp.rank]), (*alone, *chain(*pieces_of)), device)
    return AttentionPlan(
        runs=rows.runs,
        positions=_tensor(_positions(batch, rows.runs), device),
        groups=tuple(_group(rows, index, group) for index, group in enumerate(pool.groups)),
        joined=_joined(pieces_of, sum(len(run) for run in alone), device) if shared else None,
        last=_last_rows(batch, rows.runs, device) if cp.rank == 0 else None,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What all groups plan from: ``runs`` are this rank's rows, ``stored`` all that end up in its pool, ``single`` the
    parts of one token, longest first."""

    batch: Sequence[Span]
    single: Sequence[int]
    runs: tuple[Run, ...]
    stored: tuple[Run, ...]
    device: torch.device


def _group(rows: _Rows, index: int, pool: GroupPool) -> GroupPlan:
    window, batch = pool.group.window, rows.batch
    seen = [_seen(batch[i].start + 1, window) for i in rows.single]
    begins = list(accumulate((len(run) for run in rows.runs), initial=0))
    return GroupPlan(
        slots=_stored_slots(rows, index, pool),
        singles=tuple(
            _singles([batch[i] for i in rows.single[begin:stop]], index, pool, begin, rows.device)
            for begin, stop in pairwise(_bounds(seen))
        ),
        chunks=tuple(
            _chunk(batch[run.index], run, index, pool, begins[row], rows.device)
            for row, run in enumerate(rows.runs[len(rows.single) :], start=len(rows.single))
        ),
    )


def _seen(context: int, window: int | None) -> int:
    return context if window is None else min(context, window)


def _check_tables(batch: Sequence[Span], pool: KvPool) -> None:
    for span in batch:
        end = span.start + len(span)
        for group, table in zip(pool.groups, span.block_tables, strict=True):
            if end > len(table) * group.block_size:
                raise ValueError(f"{end} tokens do not fit {len(table)} KV blocks")


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


def _singles(spans: Sequence[Span], index: int, pool: GroupPool, begin: int, device: torch.device) -> Singles:
    """The newest tokens of each context that the group looks at, oldest first."""
    ends = np.array([span.start + 1 for span in spans])
    lengths = ends if pool.group.window is None else np.minimum(ends, pool.group.window)
    longest, size = int(lengths[0]), pool.block_size
    within = np.arange(longest)
    attended = within < lengths[:, None]
    positions = np.where(attended, (ends - lengths)[:, None] + within, (ends - lengths)[:, None])
    tables = np.zeros((len(spans), -(-int(ends[0]) // size)), dtype=np.int64)
    for row, span in zip(tables, spans, strict=True):
        known = _table(span.block_tables[index])[: len(row)]
        row[: len(known)] = known
    blocks = np.take_along_axis(tables, positions // size, axis=1)
    padded = int(lengths[-1]) != longest
    return Singles(
        begin=begin,
        stop=begin + len(spans),
        context=pool.contexts(blocks, positions % size, device),
        bias=_bias(attended, pool.dtype, device) if padded else None,
    )


def _bias(attended: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor:
    bias = np.where(attended, np.float32(0), np.float32("-inf"))
    return _tensor(bias[:, None, None, :], device).to(dtype)


def _chunk(span: Span, run: Run, index: int, pool: GroupPool, begin: int, device: torch.device) -> Chunk:
    stop, window = begin + len(run), pool.group.window
    before, context = span.start + run.first, span.start + run.stop
    if span.start == 0 and len(run) == len(span):
        if window is None or context <= window:
            return Chunk(begin=begin, stop=stop, context=None, mask=None)
        return Chunk(begin=begin, stop=stop, context=None, mask=_band(context, 0, 0, window).to(device))
    first = 0 if window is None else max(0, before + 1 - window)
    positions = np.arange(first, context)
    blocks = _table(span.block_tables[index])[positions // pool.block_size]
    return Chunk(
        begin=begin,
        stop=stop,
        context=pool.contexts(blocks[None], (positions % pool.block_size)[None], device),
        mask=_band(context - before, before, first, window).to(device),
    )


def _band(rows: int, before: int, first: int, window: int | None) -> Tensor:
    """True where the token at ``before + row`` looks at the one at ``first + column``."""
    shift = before - first
    mask = torch.ones(rows, shift + rows, dtype=torch.bool).tril(shift)
    return mask if window is None else mask.triu(shift + 1 - window)


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


def _stored_slots(rows: _Rows, index: int, pool: GroupPool) -> Slots:
    """The slots of all tokens that are stored, one after the other."""
    size = pool.block_size
    blocks: list[int] = []
    for run in rows.stored:
        span = rows.batch[run.index]
        table = span.block_tables[index]
        blocks.extend(table[at // size] for at in range(span.start + run.first, span.start + run.stop))
    return pool.slots(np.array(blocks), _positions(rows.batch, rows.stored) % size, rows.device)


@lru_cache(maxsize=4096)
def _table(block_table: tuple[int, ...]) -> Indices:
    """A request's table is the same from step to step until it grows."""
    return np.array(block_table, dtype=np.int64)


def _tensor(indices: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(indices).to(device)
