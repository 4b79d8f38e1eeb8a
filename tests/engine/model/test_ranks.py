"""Ranks that share a model compute what one rank does alone: logits within 1e-4, the same greedy tokens, equal pools."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pdcore.engine.model.context import TOKENS_WORTH_SHARING
from pdcore.engine.model.runner import Slice
from pdcore.engine.placement import Sizes
from tests.engine.model.conftest import TinyModel
from tests.support.golden import TIE
from tests.support.paged_generation import PagedModel
from tests.support.rank_group import Place, RankGroup

pytestmark = pytest.mark.integration

CHUNK = 40
MOST = 6
PROMPTS = (97, 1, 40, 33, 12)


@dataclass(frozen=True)
class Script:
    """What to compute: sequences whose tokens are all known, of which the first ``prompts[i]`` come in chunks."""

    directory: Path
    prompts: tuple[int, ...]
    sequences: tuple[tuple[int, ...], ...]

    def batches(self) -> Iterator[list[tuple[int, int, int]]]:
        """(sequence, first, stop) of each part, step by step; a sequence joins in each, so that all kinds mix."""
        done = [0] * len(self.sequences)
        joined = 1
        while batch := [
            (i, done[i], self._stop(i, done[i])) for i in range(joined) if self._left(i, done[i])
        ]:
            yield batch
            for i, _, stop in batch:
                done[i] = stop
            joined = min(joined + 1, len(self.sequences))

    def _left(self, i: int, done: int) -> int:
        return len(self.sequences[i]) - done

    def _stop(self, i: int, done: int) -> int:
        return min(done + CHUNK, self.prompts[i]) if done < self.prompts[i] else done + 1


def script(directory: Path) -> Script:
    dice = random.Random(3)
    prompts = [[dice.randrange(4, 512) for _ in range(length)] for length in PROMPTS]
    continued = PagedModel(directory).greedy(prompts, MOST)
    sequences = tuple((*prompt, *more[:-1]) for prompt, more in zip(prompts, continued, strict=True))
    return Script(directory, PROMPTS, sequences)


def play(model: PagedModel, script: Script, *, leads: bool) -> list[Any]:
    """The logits of each step, on the rank that leads."""
    tables = [model.table(len(sequence)) for sequence in script.sequences]
    steps = []
    for batch in script.batches():
        slices = [Slice(script.sequences[i][first:stop], first, tables[i]) for i, first, stop in batch]
        if leads:
            steps.append(model.runner.forward(slices, model.pool).numpy())
        else:
            model.runner.follow(slices, model.pool)
    return steps


def play_as_rank(place: Place) -> tuple[str, list[Any]]:
    """A digest of the rank's whole pool, and its logits."""
    with place.joined() as groups:
        model = PagedModel(place.argument.directory, groups=groups)
        steps = play(model, place.argument, leads=groups.leads)
        return hashlib.sha256(model.memory).hexdigest(), steps


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama-biases-shards", Sizes(tp=2)),
        ("qwen3", Sizes(tp=4)),
        ("qwen3-untied-yarn", Sizes(cp=2)),
        ("llama-biases-shards", Sizes(cp=2, tp=2)),
    ],
    ids=["tp2", "tp4-of-2-kv-heads", "cp2", "cp2-tp2"],
)
def test_ranks_compute_together_what_one_computes_alone(
    tiny_model: TinyModel, tmp_path: Path, name: str, sizes: Sizes
) -> None:
    directory = tiny_model(name)
    given = script(directory)
    assert max(PROMPTS) > CHUNK > sizes.cp * TOKENS_WORTH_SHARING > min(PROMPTS)
    with RankGroup(play_as_rank, sizes, tmp_path, argument=given) as ranks:
        played = ranks.results()
    alone = play(PagedModel(directory), given, leads=True)
    (_, together), *others = played
    assert len(alone) == len(together) > max(PROMPTS) // CHUNK + MOST
    assert all(logits == [] for _, logits in others)
    for expected, found in zip(map(torch.tensor, alone), map(torch.tensor, together), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        best = expected.topk(2).values
        clear = best[:, 0] - best[:, 1] > TIE
        assert torch.equal(found.argmax(dim=-1)[clear], expected.argmax(dim=-1)[clear])
    for position, (digest, _) in zip(sizes.positions(), played, strict=True):
        first = sizes.number(position._replace(cp=0))
        assert digest == played[first][0], f"the pool of rank {position} differs"


def test_the_second_context_parallel_rank_has_no_logits(tiny_model: TinyModel, tmp_path: Path) -> None:
    with RankGroup(ask_for_logits, Sizes(cp=2), tmp_path, argument=tiny_model("llama")) as ranks:
        assert ranks.results() == [
            "[1, 512]",
            "only the first context parallel rank computes every last token",
        ]


def ask_for_logits(place: Place) -> str:
    with place.joined() as groups:
        model = PagedModel(place.argument, groups=groups)
        try:
            return str(list(model.runner.forward([Slice((5, 6), 0, model.table(2))], model.pool).shape))
        except ValueError as refused:
            return str(refused)
