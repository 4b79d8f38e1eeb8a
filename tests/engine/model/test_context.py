"""Pieces of a shared chunk: every token once, evenly, the last on the rank that samples."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.model.context import TOKENS_WORTH_SHARING, is_shared, pieces

pytestmark = pytest.mark.unit

shared = st.integers(2, 17).flatmap(
    lambda ranks: st.tuples(st.integers(ranks * TOKENS_WORTH_SHARING, 999), st.just(ranks))
)


@settings(max_examples=30, deadline=None)
@given(shared)
def test_every_token_is_computed_by_one_rank(chunk: tuple[int, int]) -> None:
    tokens, ranks = chunk
    assert is_shared(tokens, ranks)
    own = [pieces(tokens, ranks, rank) for rank in range(ranks)]
    assert sorted(token for both in own for piece in both for token in piece) == list(range(tokens))
    assert all(piece for both in own for piece in both)
    assert own[0][1].stop == tokens


@settings(max_examples=30, deadline=None)
@given(shared)
def test_ranks_have_as_many_tokens_and_as_much_to_attend_to(chunk: tuple[int, int]) -> None:
    tokens, ranks = chunk
    own = [pieces(tokens, ranks, rank) for rank in range(ranks)]
    counts = [sum(map(len, both)) for both in own]
    assert max(counts) - min(counts) <= 2
    work = [sum(sum(piece) + len(piece) for piece in both) for both in own]
    assert max(work) - min(work) <= 4 * tokens


@pytest.mark.parametrize(("tokens", "ranks"), [(5000, 1), (31, 2), (1, 4), (63, 4)])
def test_what_is_not_worth_it_is_computed_by_all(tokens: int, ranks: int) -> None:
    assert not is_shared(tokens, ranks)
