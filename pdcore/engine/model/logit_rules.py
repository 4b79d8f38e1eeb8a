"""What requests change about their logits before a token is chosen: penalties, biases, tokens that may not come yet.

Repetition penalty looks at prompt and output, as Hugging Face's does; presence and frequency penalties look at the
output alone, as OpenAI's do. Log probabilities that are reported know nothing of any of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pdcore.engine.messages import Sampling
from pdcore.engine.scheduler.request import Request


@torch.inference_mode()
def obeyed(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """``logits`` (``[n, vocab]``) by the rules of each row's request; the same tensor when no row has any."""
    ruled = [row for row, request in enumerate(requests) if _has_rules(request)]
    if not ruled:
        return logits
    changed = logits.clone()
    for row in ruled:
        _change(changed[row], requests[row])
    return changed


def _has_rules(request: Request) -> bool:
    sampling = request.start.sampling
    return (
        _must_go_on(request)
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or bool(sampling.bias)
    )


def _must_go_on(request: Request) -> bool:
    limits = request.start.limits
    return len(request.output) < limits.min_tokens and bool(limits.stop_token_ids)


def _change(row: Tensor, request: Request) -> None:
    """``row`` in place."""
    start, sampling = request.start, request.start.sampling
    if sampling.repetition_penalty != 1:
        _repel(row, {*start.prompt, *request.output}, sampling.repetition_penalty)
    generated = [*start.prompt[len(start.prompt) - start.resumed :], *request.output]
    if generated and (sampling.presence_penalty or sampling.frequency_penalty):
        _penalise(row, generated, sampling)
    if sampling.bias:
        ids, values = zip(*sampling.bias, strict=True)
        row.index_add_(0, _ids(row, ids), torch.tensor(values, dtype=row.dtype, device=row.device))
    if _must_go_on(request):
        row[_ids(row, start.limits.stop_token_ids)] = float("-inf")


def _repel(row: Tensor, seen: Iterable[int], penalty: float) -> None:
    ids = _ids(row, seen)
    values = row.index_select(0, ids)
    row.index_copy_(0, ids, torch.where(values > 0, values / penalty, values * penalty))


def _penalise(row: Tensor, generated: Sequence[int], sampling: Sampling) -> None:
    counts = {token: count for token, count in Counter(generated).items() if token < row.shape[0]}
    times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
    penalties = sampling.presence_penalty + sampling.frequency_penalty * times
    row.index_add_(0, _ids(row, counts), penalties, alpha=-1)


def _ids(row: Tensor, ids: Iterable[int]) -> Tensor:
    return torch.tensor([i for i in ids if i < row.shape[0]], dtype=torch.int64, device=row.device)
