"""Sampling: exact when greedy, the asked distribution otherwise, and noise that depends on (seed, position) alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.messages import Sampling
from pdcore.engine.model import sampling
from pdcore.engine.model.sampling import log_probabilities, sample, uniform

pytestmark = pytest.mark.unit


def params(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0) -> Sampling:
    return Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)


def logits(rows: int, vocabulary: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def frequencies(row: torch.Tensor, param: Sampling, draws: int = 4_000) -> torch.Tensor:
    chosen = sample(row.expand(draws, -1), [param] * draws, range(draws))
    return torch.bincount(torch.tensor(chosen), minlength=len(row)) / draws


def test_greedy_is_the_argmax() -> None:
    rows = logits(5)
    assert sample(rows, [params(temperature=0, top_k=3)] * 5, range(5)) == rows.argmax(dim=-1).tolist()


def test_draws_follow_the_distribution() -> None:
    row = logits(1, 20)[0]
    assert (frequencies(row, params(temperature=0.7)) - (row / 0.7).softmax(dim=0)).abs().max() < 0.03


def test_top_k_keeps_the_best_and_their_proportions() -> None:
    row = logits(1, 20)[0]
    drawn = frequencies(row, params(top_k=3))
    best = row.topk(3).indices
    assert set(drawn.nonzero().flatten().tolist()) == set(best.tolist())
    assert (drawn[best] - row[best].softmax(dim=0)).abs().max() < 0.03


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.85, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    row = torch.tensor([0.05, 0.5, 0.15, 0.3]).log()
    assert int((frequencies(row, params(top_p=top_p), 500) > 0).sum()) == kept


def test_top_p_counts_what_top_k_left() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert int((frequencies(row, params(top_k=2, top_p=0.55), 500) > 0).sum()) == 1


def test_tokens_that_tie_with_the_last_kept_are_kept() -> None:
    row = torch.tensor([1.0, 2.0, 2.0, 2.0])
    assert int((frequencies(row, params(top_k=1), 500) > 0).sum()) == 3


def test_a_flat_distribution_is_cut_beyond_the_first_candidates() -> None:
    vocabulary = sampling.CANDIDATES * 4
    row = torch.linspace(0, 0.001, vocabulary)
    chosen = sample(row.expand(40, -1), [params(top_p=0.5)] * 40, range(40))
    assert min(chosen) >= vocabulary // 2 - 2
    assert min(chosen) < vocabulary * 0.7


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    rows = logits(4)
    assert sample(rows, [params(temperature=1e-8)] * 4, range(4)) == rows.argmax(dim=-1).tolist()


def test_a_row_does_not_depend_on_its_batch() -> None:
    rows = logits(16, 3000)
    choices = [
        params(temperature=0.0 if i % 5 == 0 else 0.9, top_k=(i % 3) * 7, top_p=1 - 0.1 * (i % 2), seed=i)
        for i in range(16)
    ]
    together = sample(rows, choices, [100 + i for i in range(16)])
    alone = [sample(rows[i : i + 1], [choices[i]], [100 + i])[0] for i in range(16)]
    backwards = sample(rows.flip(0), choices[::-1], [115 - i for i in range(16)])
    assert together == alone == backwards[::-1]


def test_seed_and_position_change_the_noise() -> None:
    assert len({uniform(seed, position) for seed in range(30) for position in range(30)}) == 900


@given(st.integers(), st.integers(0, 1 << 40))
def test_noise_is_at_least_0_and_below_1(seed: int, position: int) -> None:
    assert 0 <= uniform(seed, position) < 1


def test_the_scheme_itself_is_pinned() -> None:
    """Every process and every version must draw the same: a request may move to another instance at any token."""
    assert [uniform(0, 0), uniform(1, 2)] == [0.0564663990004608, 0.6434025071674214]


def test_log_probabilities_are_those_of_the_whole_distribution_best_first() -> None:
    rows = logits(3, 20)
    every = rows.double().log_softmax(dim=-1)
    for row, told in enumerate(log_probabilities(rows, [3, 5, 7], [4, 0, 100])):
        count = (4, 0, 20)[row]
        assert told.logprob == pytest.approx(float(every[row, (3, 5, 7)[row]]), abs=1e-6)
        assert [token for token, _ in told.top] == rows[row].topk(count).indices.tolist()
        assert [value for _, value in told.top] == pytest.approx(
            every[row].topk(count).values.tolist(), abs=1e-6
        )
    assert sum(math.exp(value) for _, value in told.top) == pytest.approx(1)


@pytest.mark.parametrize("temperature", [1e-46, 1e-308, 5e-324, 1e-38, 1e-6, 1e-5, 1e-4])
def test_a_tiny_temperature_chooses_the_best_token(temperature: float) -> None:
    logits = torch.tensor([[0.5, 3.0, -2.0, 2.9]])
    params = [Sampling(temperature=temperature, top_p=0.9, top_k=0, seed=s) for s in range(20)]
    assert {t for p in params for t in sample(logits, [p], [1])} == {1}


def test_min_p_drops_what_is_less_likely_than_its_share_of_the_best() -> None:
    row = torch.tensor([0.05, 0.5, 0.15, 0.3]).log()
    for share, kept in ((0.0, 4), (0.2, 3), (0.5, 2), (0.9, 1), (1.0, 1)):
        param = Sampling(temperature=1, top_p=1, top_k=0, seed=0, min_p=share)
        assert int((frequencies(row, param, 500) > 0).sum()) == kept, share
