"""The map that shares what does not change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.topology.shards import ShardedMap

pytestmark = pytest.mark.unit
few = settings(max_examples=20, deadline=None, derandomize=True, database=None)
names = st.text("abc", max_size=3)


def made_of(values: dict[str, int]) -> ShardedMap[int]:
    empty: ShardedMap[int] = ShardedMap()
    return empty.updated(values)


@few
@given(st.lists(st.dictionaries(names, st.none() | st.integers(0, 3)), max_size=5))
def test_it_is_a_dictionary(updates: list[dict[str, int | None]]) -> None:
    sharded, plain = made_of({}), dict[str, int]()
    for update in updates:
        before, held = sharded, dict(plain)
        sharded = sharded.updated(update)
        for key, value in update.items():
            if value is None:
                plain.pop(key, None)
            else:
                plain[key] = value
        assert (dict(sharded), len(sharded)) == (plain, len(plain))
        assert sharded == made_of(plain)
        assert (dict(sharded.items()), sorted(sharded.values())) == (plain, sorted(plain.values()))
        assert dict(before) == held
        assert sharded.changed(before) == sorted(k for k in plain | held if plain.get(k) != held.get(k))


def test_an_update_without_difference_is_the_same_map() -> None:
    sharded = made_of({"a": 1})
    assert sharded.updated({}) is sharded
    assert sharded.updated({"a": 1, "b": None}) is sharded


def test_maps_with_other_values_or_names_differ() -> None:
    assert made_of({"a": 1}) != made_of({"a": 2})
    assert made_of({"a": 1}) != made_of({"a": 1, "b": 1})
    assert made_of({"a": 1}) == {"a": 1}


def test_a_missing_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        made_of({"a": 1})["b"]


def test_it_shows_its_entries_in_order() -> None:
    assert repr(made_of({"b": 2, "a": 1})) == "ShardedMap({'a': 1, 'b': 2})"
