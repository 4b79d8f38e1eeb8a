"""How the bytes of a KV cache lie in memory. Needs no tensor library; msgspec encodes a layout as it is.

A layout is made of groups. A group has a pool of its own, made of equal blocks, and block ids of its own: block ``i``
lies at ``i * block_bytes`` from where the group's pool begins, and holds every entry of the group (keys, values,
scales, …, of all layers that the group serves) for ``block_size`` tokens. The unit of allocation is the whole block.

Within a block there are two orders:

- ``token``: entry after entry, each ``[row, head, item]``. Dense attention in it is ``[layer, k|v, token, head, dim]``.
- ``head``: first every replicated entry as ``[row, head, item]``, then for each head, every sharded entry as
  ``[row, item]``: ``[head, layer, k|v, token, dim]``. The heads of one tensor-parallel rank are then one run of bytes.

A *whole* layout describes a model, ``shard`` what one tensor-parallel rank of it holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Final, Literal, Self

import msgspec

from pdcore.topology.compat import split_problems

LAYOUT_VERSION: Final = 1
"""Changes only when the bytes of a block do."""
MAX_GROUPS: Final = 64
MAX_ENTRIES: Final = 1 << 14

Sharding = Literal["heads", "replicated"]
Order = Literal["token", "head"]


class KvEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one layer keeps of each row: ``heads`` items of ``dim`` elements. A row stands for ``tokens_per_row`` tokens.

    ``heads`` are split over the tensor-parallel ranks, and repeated when there are more ranks than heads. A
    ``replicated`` entry (MLA's latent, an indexer's keys, a scale that all heads share) is the same on every rank.
    """

    name: str
    layer: int
    heads: int
    dim: int
    itemsize: int
    dtype_name: str
    sharding: Sharding = "heads"
    tokens_per_row: int = 1

    @property
    def item_bytes(self) -> int:
        """Bytes of one head of one row."""
        return self.dim * self.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.heads * self.item_bytes

    def __str__(self) -> str:
        return f"{self.name}.{self.layer}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry lies in its block, in bytes: row ``r`` of head ``h`` at ``base + r * per_row + h * per_head``."""

    base: int
    per_row: int
    per_head: int
    rows: int


class KvGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Entries that share block ids. ``window``: attention looks at no more than that many tokens, None for all."""

    key: str
    block_size: int
    entries: tuple[KvEntry, ...]
    order: Order = "token"
    window: int | None = None

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of one block; also the distance between the starts of two neighbouring blocks."""
        return sum(self.rows(entry) * entry.row_bytes for entry in self.entries)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where each entry lies in a block, in the order of ``entries``."""
        return tuple(_in_token_order(self) if self.order == "token" else _in_head_order(self))

    def rows(self, entry: KvEntry) -> int:
        """How many rows of ``entry`` a block holds."""
        return self.block_size // entry.tokens_per_row

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens need."""
        return -(-tokens // self.block_size)

    def live_blocks(self, tokens: int) -> range:
        """Which of the blocks of ``tokens`` tokens attention can still look at, as positions in a block list."""
        seen = tokens if self.window is None else min(tokens, self.window)
        return range((tokens - seen) // self.block_size, self.blocks_for(tokens))


class KvLayout(msgspec.Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """The groups of a model, or of one rank's shard of it. ValueError with every reason for what cannot be."""

    groups: tuple[KvGroup, ...]

    def __post_init__(self) -> None:
        wrong = tuple(_problems(self.groups))
        if wrong:
            raise ValueError("; ".join(wrong))

    @classmethod
    def dense(
        cls,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        itemsize: int,
        dtype_name: str,
        order: Order = "token",
    ) -> Self:
        """Keys and values of full attention in every layer, as entries ``k`` and ``v`` of one group."""
        if layers < 1:
            raise ValueError(f"layers must be at least 1, not {layers}")
        entries = tuple(
            KvEntry(
                name=name, layer=layer, heads=kv_heads, dim=head_dim, itemsize=itemsize, dtype_name=dtype_name
            )
            for layer in range(layers)
            for name in ("k", "v")
        )
        return cls(groups=(KvGroup(key="kv", block_size=block_size, entries=entries, order=order),))

    def shard(self, tp_size: int, tp: int) -> KvLayout:
        """What rank ``tp`` of ``tp_size`` holds. ValueError with every reason when heads cannot be split so."""
        wrong = shard_problems(self, tp_size)
        if wrong:
            raise ValueError("; ".join(wrong))
        if not 0 <= tp < tp_size:
            raise ValueError(f"tp {tp} is outside 0..{tp_size - 1}")
        return _shard(self, tp_size, tp)

    def fingerprint(self) -> str:
        """A short hash of every field and of the orders above; equal ones mean bytes can be copied as they are.

        A field that a newer version adds changes nothing where it has its default.
        """
        text = f"block-major/{LAYOUT_VERSION}:".encode() + msgspec.json.encode(self)
        return hashlib.sha256(text).hexdigest()[:32]

    @cached_property
    def split_heads(self) -> frozenset[int]:
        """How many heads the entries have that tensor-parallel ranks split."""
        entries = (entry for group in self.groups for entry in group.entries)
        return frozenset(entry.heads for entry in entries if entry.sharding == "heads")

    @property
    def only_group(self) -> KvGroup:
        """The group of a layout that has one; ValueError when there are several."""
        if len(self.groups) != 1:
            raise ValueError(f"the layout has {len(self.groups)} groups, not one")
        return self.groups[0]

    @property
    def block_size(self) -> int:
        """Tokens per block of the only group."""
        return self.only_group.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes per block of the only group."""
        return self.only_group.block_bytes

    def blocks_for(self, tokens: int) -> int:
        """How many blocks of the only group ``tokens`` tokens need."""
        return self.only_group.blocks_for(tokens)

    def dense_shape(self) -> DenseShape:
        """The dimensions of a layout that ``dense`` made (or a shard of one); ValueError for any other."""
        group = self.only_group
        first = group.entries[0]
        shape = DenseShape(
            layers=len(group.entries) // 2,
            kv_heads=first.heads,
            head_dim=first.dim,
            block_size=group.block_size,
            itemsize=first.itemsize,
            dtype_name=first.dtype_name,
            order=group.order,
        )
        if len(group.entries) < 2 or KvLayout.dense(**asdict(shape)) != self:
            raise ValueError("the layout is not that of dense attention")
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseShape:
    """Dimensions of dense attention's only group."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    itemsize: int
    dtype_name: str
    order: Order = "token"


def held_heads(entry: KvEntry, tp_size: int, tp: int) -> range:
    """The heads of the whole ``entry`` that rank ``tp`` holds: its share, or one when there are more ranks than heads."""
    if entry.sharding == "replicated":
        return range(entry.heads)
    if entry.heads % tp_size == 0:
        share = entry.heads // tp_size
        return range(tp * share, (tp + 1) * share)
    head = tp * entry.heads // tp_size
    return range(head, head + 1)


def shard_problems(layout: KvLayout, tp_size: int, side: str = "the instance") -> tuple[str, ...]:
    """Every reason why ``tp_size`` ranks of ``side`` cannot share the heads of a whole ``layout``."""
    return split_problems(side, tp_size, layout.split_heads)


@lru_cache(maxsize=256)
def _shard(whole: KvLayout, tp_size: int, tp: int) -> KvLayout:
    return KvLayout(
        groups=tuple(
            msgspec.structs.replace(
                group,
                entries=tuple(
                    msgspec.structs.replace(entry, heads=len(held_heads(entry, tp_size, tp)))
                    for entry in group.entries
                ),
            )
            for group in whole.groups
        )
    )


def _in_token_order(group: KvGroup) -> Iterator[Place]:
    base = 0
    for entry in group.entries:
        rows = group.rows(entry)
        yield Place(base, entry.row_bytes, entry.item_bytes, rows)
        base += rows * entry.row_bytes


def _in_head_order(group: KvGroup) -> Iterator[Place]:
    sharded = [entry for entry in group.entries if entry.sharding == "heads"]
    stripe = sum(group.rows(entry) * entry.item_bytes for entry in sharded)
    base, in_stripe = (
        0,
        sum(group.rows(entry) * entry.row_bytes for entry in group.entries if entry.sharding == "replicated"),
    )
    for entry in group.entries:
        rows = group.rows(entry)
        if entry.sharding == "replicated":
            yield Place(base, entry.row_bytes, entry.item_bytes, rows)
            base += rows * entry.row_bytes
        else:
            yield Place(in_stripe, entry.item_bytes, stripe, rows)
            in_stripe += rows * entry.item_bytes


def _problems(groups: tuple[KvGroup, ...]) -> Iterator[str]:
    if not 1 <= len(groups) <= MAX_GROUPS:
        yield f"a layout has 1 to {MAX_GROUPS} groups, not {len(groups)}"
    keys = [group.key for group in groups]
    if len(set(keys)) != len(keys):
        yield f"two groups have one key: {', '.join(sorted(keys))}"
    for group in groups:
        yield from _group_problems(group)


def _group_problems(group: KvGroup) -> Iterator[str]:
    if not 1 <= len(group.entries) <= MAX_ENTRIES:
        yield f"group {group.key!r} has {len(group.entries)} entries, not 1 to {MAX_ENTRIES}"
    if group.block_size < 1:
        yield f"group {group.key!r}: block_size must be at least 1, not {group.block_size}"
    if group.window is not None and group.window < 1:
        yield f"group {group.key!r}: window must be at least 1, not {group.window}"
    seen = set()
    for entry in group.entries:
        for field in ("heads", "dim", "itemsize", "tokens_per_row"):
            if getattr(entry, field) < 1:
                yield f"{entry}: {field} must be at least 1, not {getattr(entry, field)}"
        if entry.tokens_per_row >= 1 and group.block_size % entry.tokens_per_row:
            yield f"{entry}: rows of {entry.tokens_per_row} tokens do not fill a block of {group.block_size}"
        if entry.layer < 0:
            yield f"{entry}: layer must be at least 0"
        seen.add((entry.name, entry.layer))
    if len(seen) != len(group.entries):
        yield f"group {group.key!r} has two entries of one name and layer"
    counts = {entry.heads for entry in group.entries if entry.sharding == "heads"}
    if group.order == "head" and len(counts) > 1:
        yield f"group {group.key!r} is in head order with entries of {' and '.join(map(str, sorted(counts)))} heads"
