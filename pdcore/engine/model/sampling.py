"""Choosing the next token of every sequence of a batch.

Greedy (temperature under 1e-5, where float32 arithmetic would decide by overflow) is the exact argmax. Otherwise logits are divided by the temperature, all but the ``top_k`` best
are dropped, then all but the smallest set of best tokens whose probability reaches ``top_p``; tokens that tie with the
last one kept are kept. ``min_p`` drops every token less likely than that share of the best one's likelihood. One uniform number then picks from what is left, by the inverse of the cumulative distribution
in the order of token ids.

That number depends on (seed, position) only: the first 53 bits of ``blake2b(seed, position)``. It needs no state and no
generator, so it is the same on every instance, in every process, in whatever batch the sequence happens to be: a
request resumed elsewhere, or prefilled here and decoded there, goes on as if it had stayed.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from pdcore.engine.messages import Sampling
from pdcore.engine.transfer.orders import TokenLogprobs

GREEDY_BELOW: Final = 1e-5
CANDIDATES: Final = 1024
"""How many best tokens are looked at before the whole vocabulary is sorted; changes speed, never a choice."""


@torch.inference_mode()
def sample(logits: Tensor, params: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """One token per row of ``logits`` (float32 ``[n, vocab]``).

    ``positions[i]`` is the index the chosen token will have in sequence ``i``, prompt included. A row's result depends
    on nothing but that row.
    """
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [i for i, param in enumerate(params) if param.temperature >= GREEDY_BELOW]
    if not drawn:
        return chosen
    limited = _limit(logits[drawn], [params[i] for i in drawn])
    cumulative = limited.softmax(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    noise = torch.tensor(
        [uniform(params[i].seed, positions[i]) for i in drawn], dtype=torch.float64, device=logits.device
    )
    # A row's sum is 1 only up to rounding; scaled by it, the number always falls on a token that was kept.
    targets = noise[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True).squeeze(1).tolist()
    for i, token in zip(drawn, tokens, strict=True):
        chosen[i] = token
    return chosen


@torch.inference_mode()
def log_probabilities(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprobs]:
    """What ``tokens[i]`` and the ``tops[i]`` best tokens had in row ``i`` of ``logits`` (``[n, vocab]``).

    Temperature, penalties and limits do not change what is reported. Natural logarithms; the best token first.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = (logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None]) - total)[:, 0].tolist()
    best = logits.topk(min(max(tops), logits.shape[1]), dim=-1)
    ids, values = best.indices.tolist(), (best.values - total).tolist()
    return [
        TokenLogprobs(logprob=own, top=tuple(zip(ids[row][:top], values[row][:top], strict=True)))
        for row, (own, top) in enumerate(zip(chosen, tops, strict=True))
    ]


def uniform(seed: int, position: int) -> float:
    """The noise of one token, at least 0 and below 1. Seeds are taken modulo 2 to the 64th."""
    key = struct.pack("<QQ", seed % (1 << 64), position)
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return (bits >> 11) / (1 << 53)


def _limit(logits: Tensor, params: Sequence[Sampling]) -> Tensor:
    """``logits`` by temperature, minus infinity where top-k or top-p leaves no chance."""
    temperatures = torch.tensor([param.temperature for param in params], device=logits.device)
    # Subtracting the maximum first keeps tiny temperatures from overflowing.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures[:, None]
    for i, param in enumerate(params):
        if param.min_p > 0:
            scaled[i].masked_fill_(scaled[i] < math.log(param.min_p), float("-inf"))  # the best one is at 0
        if param.top_k > 0 or param.top_p < 1:
            scaled[i].masked_fill_(scaled[i] < _threshold(scaled[i], param), float("-inf"))
    return scaled


def _threshold(row: Tensor, param: Sampling) -> Tensor:
    """The value of the last token that is kept."""
    vocabulary = row.shape[0]
    top_k = min(param.top_k or vocabulary, vocabulary)
    if param.top_p >= 1:
        return row.topk(top_k).values[-1]
    mass = row.masked_fill(row < row.topk(top_k).values[-1], float("-inf")) if top_k < vocabulary else row
    log_total = mass.double().logsumexp(dim=0)
    for count in (min(CANDIDATES, vocabulary), vocabulary):
        best = mass.topk(count).values
        before = (best.double() - log_total).exp().cumsum(dim=0)
        kept = int((before[:-1] < param.top_p).sum()) + 1
        if kept < count or count == vocabulary:
            break
    return best[kept - 1]
