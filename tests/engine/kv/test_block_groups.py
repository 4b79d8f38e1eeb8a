"""Several pools at once: all or nothing, whatever the groups' sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.kv.block_groups import BlockGroup, BlockGroups, within

pytestmark = pytest.mark.unit


def two(small: int = 8, large: int = 4) -> BlockGroups:
    return BlockGroups(BlockGroup(block_size=4, blocks=small), BlockGroup(block_size=16, blocks=large))


def test_tokens_take_blocks_of_each_groups_own_size() -> None:
    groups = two()
    assert groups.needed(17) == (5, 2)
    assert groups.tokens == 32, "the smaller cache is the limit"
    assert groups.allocate(groups.needed(17), "a") == ((0, 1, 2, 3, 4), (0, 1))
    assert groups.free_blocks == (3, 2)


def test_a_group_that_has_not_enough_leaves_the_others_untouched() -> None:
    groups = two(large=1)
    assert groups.allocate((2, 2), "a") is None
    assert groups.free_blocks == groups.total
    groups.allocate((2, 1), "a")
    assert groups.extend((1, 1), "a") is None
    assert groups.free_blocks == (6, 0)


def test_a_group_need_not_grow_with_the_others() -> None:
    groups = two()
    groups.allocate((1, 1), "a")
    assert groups.extend((2, 0), "a") == ((1, 2), ())


def test_letting_go_in_every_way_empties_every_group() -> None:
    groups = two()
    blocks = groups.allocate((3, 2), "a")
    assert blocks is not None
    groups.pin(blocks)
    groups.free_owner("a")
    assert groups.statistics().lingering == 5
    groups.unpin(blocks)
    groups.allocate((3, 2), "b")
    groups.quarantine_owner("b", 7)
    assert [part.quarantined for part in groups.group_statistics()] == [3, 2]
    groups.release(7)
    groups.release(7)
    assert groups.free_blocks == groups.total


def test_a_cache_without_groups_or_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        BlockGroups()
    with pytest.raises(ValueError, match="at least one token"):
        BlockGroup(block_size=0, blocks=1)


def test_the_repr_shows_every_group() -> None:
    assert repr(two(2, 1)).count("free") == 2


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 32), st.integers(1, 50)), min_size=1, max_size=4), st.integers(1, 200)
)
def test_tokens_fit_iff_every_group_has_their_blocks(shapes: list[tuple[int, int]], tokens: int) -> None:
    groups = BlockGroups(*(BlockGroup(block_size=size, blocks=blocks) for size, blocks in shapes))
    needed = groups.needed(tokens)
    assert groups.room_in(needed) >= tokens
    assert all(groups.needed(tokens)[i] == -(-tokens // size) for i, (size, _) in enumerate(shapes))
    assert (
        (tokens <= groups.tokens)
        == within(needed, groups.total)
        == (groups.allocate(needed, "a") is not None)
    )
