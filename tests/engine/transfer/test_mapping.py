"""Who feeds whom: by hand for the cases that are served, by properties for all."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout, held_heads
from pdcore.engine.transfer.mapping import (
    GroupRank,
    GroupSizes,
    RankMapping,
    block_part,
    mapping_problems,
    spread_of,
)

pytestmark = pytest.mark.unit


def layout(heads: int, *, latent: bool = False) -> KvLayout:
    key = KvEntry(name="k", layer=0, heads=heads, dim=1, itemsize=1, dtype_name="uint8")
    one = KvEntry(name="c", layer=0, heads=1, dim=1, itemsize=1, dtype_name="uint8", sharding="replicated")
    return KvLayout(groups=(KvGroup(key="kv", block_size=4, entries=(key, one) if latent else (key,)),))


MLA = KvLayout(
    groups=(
        KvGroup(
            key="kv",
            block_size=4,
            entries=(
                KvEntry(
                    name="c", layer=0, heads=1, dim=8, itemsize=1, dtype_name="u8", sharding="replicated"
                ),
            ),
        ),
    )
)


def tps(mapping: RankMapping) -> list[list[int]]:
    """The tp of each decode rank's sources."""
    return [[rank.tp for rank in mapping.sources_of(GroupRank(0, tp))] for tp in range(mapping.decode.tp)]


@pytest.mark.parametrize(
    ("prefill", "decode", "heads", "spread", "sources"),
    [
        (1, 1, 4, 0, [[0]]),
        (2, 2, 2, 5, [[0], [1]]),
        (2, 1, 2, 0, [[0, 1]]),
        (1, 2, 2, 0, [[0], [0]]),
        (4, 2, 4, 1, [[0, 1], [2, 3]]),
        (2, 4, 4, 1, [[0], [0], [1], [1]]),
        (4, 1, 2, 0, [[0, 2]]),
        (4, 1, 2, 1, [[1, 3]]),
        (8, 4, 2, 0, [[0], [2], [4], [6]]),
        (8, 4, 2, 3, [[1], [3], [5], [7]]),
        (2, 8, 2, 1, [[0], [0], [0], [0], [1], [1], [1], [1]]),
        (4, 4, 1, 2, [[0], [1], [2], [3]]),
    ],
)
def test_heads_come_from_the_ranks_that_hold_them(
    prefill: int, decode: int, heads: int, spread: int, sources: list[list[int]]
) -> None:
    assert tps(RankMapping(GroupSizes(1, prefill), GroupSizes(1, decode), layout(heads), spread)) == sources


def test_what_every_rank_holds_comes_from_one_of_them_and_each_decode_group_asks_another() -> None:
    asked = Counter[int]()
    for dp in range(16):
        mapping = RankMapping(GroupSizes(1, 16), GroupSizes(1, 1), MLA, spread_of("decode-0", dp))
        (only,) = mapping.participants()
        assert mapping.sources_of(GroupRank(0, 0)) == (only,)
        assert mapping.destinations_of(only) == (GroupRank(0, 0),)
        assert mapping.destinations_of(GroupRank(0, (only.tp + 1) % 16)) == ()
        asked[only.tp] += 1
    assert set(asked.values()) == {1}
    assert len(asked) == 16


def test_a_replicated_entry_needs_no_rank_that_no_head_needs() -> None:
    for spread in range(8):
        both = RankMapping(GroupSizes(1, 8), GroupSizes(1, 2), layout(4, latent=True), spread)
        heads_only = RankMapping(GroupSizes(1, 8), GroupSizes(1, 2), layout(4), spread)
        assert both.participants() == heads_only.participants()


def test_all_context_parallel_ranks_of_a_source_are_sources() -> None:
    mapping = RankMapping(GroupSizes(3, 2), GroupSizes(1, 2), layout(2))
    assert mapping.sources_of(GroupRank(0, 1)) == (GroupRank(0, 1), GroupRank(1, 1), GroupRank(2, 1))
    assert mapping.destinations_of(GroupRank(2, 0)) == (GroupRank(0, 0),)
    assert len(mapping.participants()) == 6


@pytest.mark.parametrize(("count", "sizes"), [(8, [2, 3, 3]), (2, [0, 1, 1]), (0, [0, 0, 0])])
def test_context_parallel_ranks_share_a_block_list(count: int, sizes: list[int]) -> None:
    parts = [block_part(range(5, 5 + count), cp, 3) for cp in range(3)]
    assert [len(part) for part in parts] == sizes
    assert [block for part in parts for block in part] == list(range(5, 5 + count))


def test_every_reason_against_the_sizes_is_given_together() -> None:
    assert mapping_problems(GroupSizes(2, 2), GroupSizes(2, 3), layout(5)) == (
        "tp_size: prefill has 2, decode 3: neither divides the other",
        "cp_size: decode has 2, only 1 can be served",
        "tp_size: prefill has 2 ranks for 5 KV heads: neither divides the other",
        "tp_size: decode has 3 ranks for 5 KV heads: neither divides the other",
    )
    assert mapping_problems(GroupSizes(4, 3), GroupSizes(1, 6), MLA) == ()
    with pytest.raises(ValueError, match="cp_size"):
        RankMapping(GroupSizes(1, 1), GroupSizes(2, 1), layout(1))


@pytest.mark.parametrize("rank", [GroupRank(0, 2), GroupRank(1, 0), GroupRank(0, -1)])
def test_a_rank_outside_its_group_is_refused(rank: GroupRank) -> None:
    mapping = RankMapping(GroupSizes(1, 2), GroupSizes(1, 2), layout(2))
    with pytest.raises(ValueError, match="outside a group of 1 x 2"):
        mapping.sources_of(rank)
    with pytest.raises(ValueError, match="outside a group of 1 x 2"):
        mapping.destinations_of(rank)


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))


@given(SIZES, st.booleans(), st.integers(0, 100))
def test_every_head_of_every_decode_rank_has_exactly_one_writer(
    sizes: tuple[int, int, int, int], latent: bool, spread: int
) -> None:
    cp, prefill, decode, heads = sizes
    whole = layout(heads, latent=latent)
    groups = GroupSizes(cp, prefill), GroupSizes(1, decode)
    if mapping_problems(*groups, whole):
        return
    mapping = RankMapping(*groups, whole, spread)
    for tp in range(decode):
        sources = mapping.sources_of(GroupRank(0, tp))
        assert sources
        for entry in whole.groups[0].entries:
            written = [head for p in range(prefill) for head in mapping.written_heads(entry, p, tp)]
            assert written == list(held_heads(entry, decode, tp))
        for rank in mapping.participants():
            assert (rank in sources) == (GroupRank(0, tp) in mapping.destinations_of(rank))
    held = max(decode, prefill) // min(decode, prefill)
    fed = [len(mapping.destinations_of(rank)) for rank in mapping.participants()]
    assert max(fed) <= (held if decode > prefill else 1)
