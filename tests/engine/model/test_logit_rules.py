"""Penalties, biases and tokens that may not come yet, beside definitions written out token by token."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.messages import Limits, Sampling, Start
from pdcore.engine.model.logit_rules import obeyed
from pdcore.engine.scheduler.places import Place
from pdcore.engine.scheduler.request import Request

pytestmark = pytest.mark.unit

VOCABULARY = 12
STOPS = (3, 7)


def request(
    prompt: tuple[int, ...] = (1, 2),
    output: tuple[int, ...] = (),
    *,
    min_tokens: int = 0,
    resumed: int = 0,
    **sampling: Any,
) -> Request:
    start = Start(
        request_id="r",
        room=0,
        prompt=prompt,
        sampling=Sampling(temperature=1, top_p=1, top_k=0, seed=0, **sampling),
        limits=Limits(max_tokens=50, stop_token_ids=STOPS, ignore_eos=False, min_tokens=min_tokens),
        remaining_ms=1000,
        resumed=resumed,
    )
    held = Request(start=start, deadline=0, context_length=100, place=Place.PREALLOC)
    for token in output:
        held.append(token)
    return held


def logits(rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 3


def test_rows_without_rules_are_not_even_copied() -> None:
    rows = logits(2)
    assert obeyed(rows, [request(), request(output=(4, 4))]) is rows


def test_a_rule_changes_its_own_row_and_leaves_what_it_was_given_alone() -> None:
    rows = logits(2)
    before = rows.clone()
    changed = obeyed(rows, [request(), request(bias=((4, 9.0),))])
    assert torch.equal(rows, before)
    assert torch.equal(changed[0], before[0])
    assert changed[1, 4] == before[1, 4] + 9


tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=8).map(tuple)


@settings(max_examples=25)
@given(tokens, tokens, st.floats(-2, 2), st.floats(-2, 2), st.floats(0.1, 3))
def test_penalties_are_what_their_definitions_say(
    prompt: tuple[int, ...], output: tuple[int, ...], presence: float, frequency: float, repetition: float
) -> None:
    row = logits()[0]
    asked = request(
        prompt,
        output,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
    )
    counts = Counter(output)
    expected = []
    for token, value in enumerate(row.tolist()):
        if token in {*prompt, *output}:
            value = value / repetition if value > 0 else value * repetition
        expected.append(value - presence * (counts[token] > 0) - frequency * counts[token])
    assert torch.allclose(obeyed(row[None], [asked])[0], torch.tensor(expected), atol=1e-5)


def test_what_was_generated_elsewhere_is_penalised_as_output() -> None:
    row = logits()
    here = obeyed(row, [request((1, 2), (5, 5, 6), frequency_penalty=1.5)])
    resumed = obeyed(row, [request((1, 2, 5, 5), (6,), resumed=2, frequency_penalty=1.5)])
    assert torch.equal(here, resumed)


def test_no_stop_token_comes_before_the_least_number_of_tokens() -> None:
    early = obeyed(logits(), [request(output=(1,), min_tokens=2)])[0]
    assert early[list(STOPS)].tolist() == [float("-inf")] * 2
    assert early.isfinite().sum() == VOCABULARY - 2
    rows = logits()
    assert obeyed(rows, [request(output=(1, 1), min_tokens=2)]) is rows


def test_ids_beyond_the_logits_are_nobodys() -> None:
    row = logits()
    assert torch.equal(obeyed(row, [request((1, 99), (98,), frequency_penalty=1.0)]), row)
