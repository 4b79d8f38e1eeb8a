"""Block accounting: every rule by itself, then all of them against a dumb model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from pdcore.engine.kv.blocks import BlockError, BlockPool

pytestmark = pytest.mark.unit


def test_blocks_are_handed_out_lowest_first_so_that_neighbours_coalesce() -> None:
    pool = BlockPool(8)
    assert pool.allocate(3, "a") == (0, 1, 2)
    assert pool.allocate(2, "b") == (3, 4)
    pool.free_owner("a")
    assert pool.allocate(4, "c") == (0, 1, 2, 5)
    assert pool.owned("c") == (0, 1, 2, 5)


def test_too_many_blocks_are_refused_and_nothing_changes() -> None:
    pool = BlockPool(4)
    pool.allocate(3, "a")
    before = pool.statistics()
    assert pool.allocate(2, "b") is None
    assert pool.extend(2, "a") is None
    assert pool.statistics() == before
    assert not pool.can_allocate(2)
    assert pool.can_allocate(1)


def test_an_owner_is_extended_in_order() -> None:
    pool = BlockPool(4)
    pool.allocate(1, "a")
    pool.allocate(1, "b")
    assert pool.extend(2, "a") == (2, 3)
    assert pool.owned("a") == (0, 2, 3)


def test_a_pinned_block_returns_at_its_last_unpin() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2, "a")
    assert blocks is not None
    pool.pin(blocks)
    pool.pin(blocks[:1])
    pool.free(blocks)
    assert (pool.statistics().lingering, pool.statistics().pinned, pool.free_blocks) == (2, 2, 0)
    pool.unpin(blocks)
    assert pool.free_blocks == 1
    pool.unpin(blocks[:1])
    assert pool.free_blocks == 2


def test_unpinning_an_owned_block_leaves_it_to_its_owner() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1, "a")
    assert blocks is not None
    pool.pin(blocks)
    pool.unpin(blocks)
    assert pool.free_blocks == 0
    pool.free(blocks)
    assert pool.free_blocks == 1


def test_quarantined_blocks_return_at_release_only() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3, "a")
    assert blocks is not None
    pool.quarantine(blocks[:2], key=17)
    assert pool.owned("a") == (2,)
    pool.free(blocks[2:])
    assert (pool.statistics().quarantined, pool.free_blocks) == (2, 1)
    assert pool.release(17) == (0, 1)
    assert pool.free_blocks == 3
    assert pool.release(17) == ()


def test_a_released_block_with_a_pin_still_lingers() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1, "a")
    assert blocks is not None
    pool.pin(blocks)
    pool.quarantine(blocks, key=1)
    pool.release(1)
    assert pool.statistics().lingering == 1
    pool.unpin(blocks)
    assert pool.free_blocks == 1


def _freed_twice(pool: BlockPool) -> None:
    pool.free((0,))
    pool.free((0,))


WRONG: dict[str, tuple[Callable[[BlockPool], object], str]] = {
    "double free": (_freed_twice, "no owner"),
    "a foreign block": (lambda pool: pool.free((9,)), "no owner"),
    "one block twice": (lambda pool: pool.free((0, 0)), "twice"),
    "freeing what is quarantined": (lambda pool: pool.free((2,)), "no owner"),
    "quarantining twice": (lambda pool: pool.quarantine((2,), "k2"), "no owner"),
    "unpin without a pin": (lambda pool: pool.unpin((0,)), "not pinned"),
    "pinning a free block": (lambda pool: pool.pin((5,)), "is free"),
    "an owner twice": (lambda pool: pool.allocate(1, "a"), "extend it"),
    "extending nobody": (lambda pool: pool.extend(1, "nobody"), "allocate first"),
    "freeing nobody": (lambda pool: pool.free_owner("nobody"), "owns no blocks"),
    "no block at all": (lambda pool: pool.allocate(0, "b"), "cannot take"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_accounting_is_refused(case: str) -> None:
    act, why = WRONG[case]
    pool = BlockPool(6)
    pool.allocate(3, "a")
    pool.quarantine((2,), key="k")
    with pytest.raises(BlockError, match=why):
        act(pool)


@pytest.mark.parametrize("blocks", [(0, 5), (0, 0), (0, 2)])
def test_a_refused_free_frees_nothing(blocks: tuple[int, ...]) -> None:
    pool = BlockPool(6)
    pool.allocate(2, "a")
    before = pool.statistics()
    with pytest.raises(BlockError):
        pool.free(blocks)
    assert pool.statistics() == before


def test_a_pool_needs_blocks() -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)


def test_the_repr_is_a_sentence() -> None:
    pool = BlockPool(8)
    pool.allocate(3, "a")
    pool.quarantine((1,), "k")
    pool.pin((0,))
    assert repr(pool) == "<BlockPool 5/8 free, 2 used by 1, 1 quarantined, 1 pinned>"


class Dumb:
    """The rules in the most obvious form: per block an owner, a quarantine, a number of pins."""

    def __init__(self, total: int) -> None:
        self.owner: list[int | None] = [None] * total
        self.jail: list[int | None] = [None] * total
        self.pins: Counter[int] = Counter()

    def is_free(self, block: int) -> bool:
        return self.owner[block] is None and self.jail[block] is None and not self.pins[block]

    def free(self) -> list[int]:
        return [block for block in range(len(self.owner)) if self.is_free(block)]

    def owned(self) -> list[int]:
        return [block for block, owner in enumerate(self.owner) if owner is not None]

    def pinned(self) -> list[int]:
        return [block for block in range(len(self.owner)) if self.pins[block]]


def _some(rng: random.Random, blocks: list[int]) -> tuple[int, ...]:
    return tuple(rng.sample(blocks, rng.randint(1, len(blocks)))) if blocks else ()


def _step(rng: random.Random, pool: BlockPool, dumb: Dumb, owner: int) -> None:
    match rng.choice(["allocate", "allocate", "free", "pin", "unpin", "quarantine", "release"]):
        case "allocate":
            count = rng.randint(1, 5)
            got, free = pool.allocate(count, owner), dumb.free()
            assert got == (tuple(free[:count]) if count <= len(free) else None)
            for block in got or ():
                dumb.owner[block] = owner
        case "free":
            blocks = _some(rng, dumb.owned())
            pool.free(blocks)
            for block in blocks:
                dumb.owner[block] = None
        case "pin":
            blocks = _some(rng, dumb.owned() + [b for b, key in enumerate(dumb.jail) if key is not None])
            pool.pin(blocks)
            dumb.pins.update(blocks)
        case "unpin":
            blocks = _some(rng, dumb.pinned())
            pool.unpin(blocks)
            dumb.pins.subtract(blocks)
        case "quarantine":
            blocks = _some(rng, dumb.owned())
            pool.quarantine(blocks, owner)
            for block in blocks:
                dumb.owner[block], dumb.jail[block] = None, owner
        case "release":
            key = rng.randint(0, owner)
            expected = [block for block, holder in enumerate(dumb.jail) if holder == key]
            assert sorted(pool.release(key)) == expected
            for block in expected:
                dumb.jail[block] = None


def _agree(pool: BlockPool, dumb: Dumb) -> None:
    s = pool.statistics()
    assert s.free == pool.free_blocks == len(dumb.free())
    assert s.used == len(dumb.owned())
    assert s.quarantined == sum(key is not None for key in dumb.jail)
    assert s.pinned == len(dumb.pinned())
    assert s.total == s.free + s.used + s.quarantined + s.lingering
    for owner in {owner for owner in dumb.owner if owner is not None}:
        assert sorted(pool.owned(owner)) == [b for b, o in enumerate(dumb.owner) if o == owner]


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_agree_with_the_dumb_model(seed: int) -> None:
    rng = random.Random(seed)
    pool, dumb = BlockPool(16), Dumb(16)
    for owner in range(300):
        _step(rng, pool, dumb, owner)
        _agree(pool, dumb)


def remembering() -> BlockPool:
    """Of four blocks ``a`` has had 0, 1 and 2, of which the first two are remembered."""
    pool = BlockPool(4)
    pool.allocate(3, "a")
    for block, key in enumerate(("first", "second")):
        pool.remember(block, key)
    pool.free_owner("a")
    return pool


def test_what_nobody_holds_is_remembered_until_its_block_is_needed() -> None:
    pool = remembering()
    assert (pool.free_blocks, pool.statistics().cached) == (4, 2)
    assert (pool.find("first"), pool.find("second"), pool.find("third")) == (0, 1, None)
    assert pool.allocate(2, "b") == (2, 3)
    assert pool.allocate(1, "c") == (1,)  # of a prompt's blocks the last one goes first
    assert (pool.find("first"), pool.find("second")) == (0, None)
    assert pool.allocate(1, "d") == (0,)
    assert pool.find("first") is None


def test_a_shared_block_stays_until_its_last_owner_lets_go() -> None:
    pool = remembering()
    pool.share((0, 1), "b")
    pool.share((0,), "c")
    assert (pool.statistics().used, pool.free_blocks) == (2, 2)
    assert pool.extend(1, "c") == (2,)
    pool.free_owner("b")
    assert pool.owned("c") == (0, 2)
    assert (pool.find("second"), pool.statistics().used) == (1, 2)
    pool.free_owner("c")
    assert (pool.free_blocks, pool.statistics().cached) == (4, 2)


def test_a_remembered_block_with_a_pin_lingers_and_can_be_shared() -> None:
    pool = remembering()
    pool.share((0,), "b")
    pool.pin((0,))
    pool.free_owner("b")
    assert pool.statistics().lingering == 1
    assert pool.allocate(4, "c") is None
    pool.share((0,), "c")
    pool.unpin((0,))
    assert pool.statistics().used == 1


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda pool: pool.share((2,), "b"), "cannot be shared"),
        (lambda pool: pool.share((0, 0), "b"), "twice"),
        (lambda pool: pool.remember(0, "third"), "no owner"),
        (lambda pool: (pool.share((0,), "b"), pool.share((0,), "b")), "cannot be shared with 'b'"),
        (lambda pool: (pool.share((0,), "b"), pool.share((0,), "c"), pool.free((0,))), "several owners"),
        (
            lambda pool: (pool.share((0,), "b"), pool.share((0,), "c"), pool.quarantine((0,), "k")),
            "several owners",
        ),
    ],
)
def test_wrong_sharing_is_refused(act: Callable[[BlockPool], object], why: str) -> None:
    with pytest.raises(BlockError, match=why):
        act(remembering())
