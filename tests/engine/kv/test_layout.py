"""Where the bytes of a KV block lie, and what one tensor-parallel rank holds of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pdcore.engine.kv.layout import KvEntry, KvGroup, KvLayout, Place, held_heads, shard_problems

pytestmark = pytest.mark.unit

DENSE: dict[str, Any] = {
    "layers": 30,
    "kv_heads": 3,
    "head_dim": 64,
    "block_size": 16,
    "itemsize": 4,
    "dtype_name": "float32",
}
LAYOUT = KvLayout.dense(**DENSE)


def entry(name: str, **changes: Any) -> KvEntry:
    fields: dict[str, Any] = {"layer": 0, "heads": 4, "dim": 8, "itemsize": 2, "dtype_name": "bfloat16"}
    return KvEntry(name=name, **(fields | changes))


def group(*entries: KvEntry, **changes: Any) -> KvGroup:
    fields: dict[str, Any] = {"key": "kv", "block_size": 4}
    return KvGroup(entries=entries, **(fields | changes))


MIXED = KvLayout(
    groups=(
        group(
            entry("k"),
            entry("scale", dim=1, itemsize=4, dtype_name="float32"),
            entry("index", heads=1, sharding="replicated", tokens_per_row=2),
            order="head",
        ),
        group(entry("latent", heads=1, dim=512, sharding="replicated"), key="mla", block_size=16, window=100),
    )
)


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.block_bytes == 30 * 2 * 3 * 64 * 4 * 16


def test_dense_attention_lies_layer_by_layer_keys_before_values_token_by_token() -> None:
    places = LAYOUT.only_group.places
    row, half = 3 * 64 * 4, 16 * 3 * 64 * 4
    assert places[:3] == tuple(Place(n * half, row, 64 * 4, 16) for n in range(3))
    assert len(places) == 60


def test_in_head_order_a_head_is_one_run_of_all_layers() -> None:
    places = KvLayout.dense(**DENSE, order="head").only_group.places
    item, stripe = 64 * 4, 60 * 16 * 64 * 4
    assert places[:2] == (Place(0, item, stripe, 16), Place(16 * item, item, stripe, 16))


def test_in_head_order_what_is_replicated_lies_before_all_heads() -> None:
    first = MIXED.groups[0]
    key, scale, index = first.places
    assert index == Place(0, 16, 16, 2)
    assert key == Place(32, 16, 4 * 16 + 4 * 4, 4)
    assert scale == Place(32 + 64, 4, 4 * 16 + 4 * 4, 4)
    assert first.block_bytes == 32 + 4 * (4 * 16 + 4 * 4)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_tokens_take_whole_blocks(tokens: int, blocks: int) -> None:
    assert LAYOUT.blocks_for(tokens) == blocks
    assert list(LAYOUT.only_group.live_blocks(tokens)) == list(range(blocks))


@pytest.mark.parametrize(
    ("tokens", "live"), [(100, range(7)), (117, range(1, 8)), (116, range(1, 8)), (115, range(8))]
)
def test_a_window_needs_only_the_blocks_that_it_reaches_into(tokens: int, live: range) -> None:
    assert MIXED.groups[1].live_blocks(tokens) == live


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "block_size", "itemsize"])
def test_every_size_changes_the_fingerprint_and_must_be_positive(field: str) -> None:
    assert KvLayout.dense(**(DENSE | {field: 7})).fingerprint() != LAYOUT.fingerprint()
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        KvLayout.dense(**(DENSE | {field: 0}))


@pytest.mark.parametrize("change", [{"dtype_name": "float16"}, {"order": "head"}])
def test_what_a_byte_means_changes_the_fingerprint(change: dict[str, str]) -> None:
    assert KvLayout.dense(**(DENSE | change)).fingerprint() != LAYOUT.fingerprint()


@pytest.mark.parametrize("layout", [LAYOUT, MIXED])
def test_a_layout_survives_its_journey(layout: KvLayout) -> None:
    for protocol in (msgspec.json, msgspec.msgpack):
        arrived = protocol.decode(protocol.encode(layout), type=KvLayout)
        assert arrived == layout
        assert arrived.fingerprint() == layout.fingerprint()


@pytest.mark.parametrize(
    "frame", ['{"groups": []}', '{"groups": [{"key": "a", "block_size": 0, "entries": []}]}']
)
def test_an_impossible_layout_does_not_arrive(frame: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(frame, type=KvLayout)


def test_every_reason_against_a_layout_is_given_together() -> None:
    wrong = (
        group(entry("k"), entry("k"), entry("v", dim=0, layer=-1), block_size=4),
        group(entry("k"), entry("q", heads=2), order="head"),
        group(entry("c", tokens_per_row=3), key="c", window=0),
    )
    with pytest.raises(ValueError, match="one key") as refused:
        KvLayout(groups=wrong)
    for part in ("two entries", "v.-1: dim", "layer must", "4 heads", "rows of 3 tokens", "window must"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("heads", "tp_size", "held"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (2, 2, [[0], [1]]),
        (2, 4, [[0], [0], [1], [1]]),
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_heads_are_split_and_repeated_when_ranks_are_more(
    heads: int, tp_size: int, held: list[list[int]]
) -> None:
    assert [list(held_heads(entry("k", heads=heads), tp_size, tp)) for tp in range(tp_size)] == held


def test_a_shard_holds_its_heads_and_all_that_is_replicated() -> None:
    shard = MIXED.shard(2, 1)
    assert [held.heads for held in shard.groups[0].entries] == [2, 2, 1]
    assert shard.groups[1] == MIXED.groups[1]
    assert MIXED.shard(1, 0) == MIXED
    assert [held.heads for held in MIXED.shard(8, 7).groups[0].entries] == [1, 1, 1]


def test_heads_that_cannot_be_split_are_named() -> None:
    both = KvLayout(groups=(group(entry("k", heads=3), entry("q", heads=2)),))
    assert shard_problems(both, 6) == ()
    assert shard_problems(both, 4) == (
        "tp_size: the instance has 4 ranks for 3 KV heads: neither divides the other",
    )
    with pytest.raises(ValueError, match="3 KV heads"):
        LAYOUT.shard(2, 0)
    with pytest.raises(ValueError, match=r"tp 3 is outside 0\.\.2"):
        LAYOUT.shard(3, 3)


def test_a_shard_of_dense_attention_is_dense() -> None:
    shape = LAYOUT.shard(3, 2).dense_shape()
    assert (shape.layers, shape.kv_heads, shape.head_dim, shape.block_size) == (30, 1, 64, 16)
    assert (shape.itemsize, shape.dtype_name, shape.order) == (4, "float32", "token")
    for other in (KvLayout(groups=MIXED.groups[1:]), KvLayout(groups=(group(entry("k")),)), MIXED):
        with pytest.raises(ValueError, match="layout"):
            other.dense_shape()


def test_several_groups_have_no_one_block_size() -> None:
    with pytest.raises(ValueError, match="2 groups"):
        _ = MIXED.block_size
