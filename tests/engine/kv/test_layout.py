"""The block-major layout."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from pdcore.engine.kv.layout import KvLayout

pytestmark = pytest.mark.unit

LAYOUT = KvLayout(layers=30, kv_heads=3, head_dim=64, block_size=16, itemsize=4, dtype_name="float32")


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.token_bytes == 46_080
    assert LAYOUT.block_bytes == 46_080 * 16


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_tokens_take_whole_blocks(tokens: int, blocks: int) -> None:
    assert LAYOUT.blocks_for(tokens) == blocks


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "block_size", "itemsize"])
def test_every_size_changes_the_fingerprint_and_must_be_positive(field: str) -> None:
    fields: dict[str, Any] = asdict(LAYOUT)
    assert KvLayout(**(fields | {field: 7})).fingerprint() != LAYOUT.fingerprint()
    with pytest.raises(ValueError, match=field):
        KvLayout(**(fields | {field: 0}))


def test_the_element_type_changes_the_fingerprint_even_at_one_size() -> None:
    half = replace(LAYOUT, itemsize=2, dtype_name="float16")
    assert half.fingerprint() != replace(half, dtype_name="bfloat16").fingerprint()


def test_equal_layouts_have_equal_fingerprints() -> None:
    assert replace(LAYOUT).fingerprint() == LAYOUT.fingerprint()
