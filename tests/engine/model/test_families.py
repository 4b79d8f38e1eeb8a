"""Every family against transformers, on tiny models that transformers made: greedy text token by token, in float32."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pdcore.engine.placement import Sizes
from tests.support.family_models import FAMILIES, write_family
from tests.support.golden import TIE, Golden
from tests.support.paged_generation import PagedModel
from tests.support.rank_group import Place, RankGroup

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MOST: Final = 12
LENGTHS: Final = (1, 9, 33, 70)
FamilyModel = Callable[[str], Path]


@pytest.fixture(scope="module")
def family_model(tmp_path_factory: pytest.TempPathFactory) -> FamilyModel:
    """The directory of one of ``FAMILIES``; its weights are in several files."""
    root = tmp_path_factory.mktemp("families")

    def directory(name: str) -> Path:
        target = root / name
        return target if target.exists() else write_family(target, name, shard_size="150KB")

    return directory


def prompts() -> list[list[int]]:
    dice = random.Random(11)
    return [[dice.randrange(4, 512) for _ in range(length)] for length in LENGTHS]


def check(golden: Golden, made: list[list[int]]) -> None:
    """``made`` is what transformers makes of the prompts, up to ties."""
    for prompt, ours in zip(prompts(), made, strict=True):
        theirs = golden.generate(prompt, MOST)
        if ours != theirs:
            step = next(n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
            gap = golden.gap([*prompt, *theirs[:step]])
            assert gap < TIE, f"token {step} is {ours[step]}, not {theirs[step]}, with a gap of {gap}"
    assert len({tuple(text) for text in made}) == len(made), "texts do not vary"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_generates_the_same_tokens(family_model: FamilyModel, name: str) -> None:
    """Prompts in chunks beside single tokens, past every window."""
    directory = family_model(name)
    assert len(list(directory.glob("*.safetensors"))) > 1
    check(Golden(directory), PagedModel(directory).greedy(prompts(), MOST))


@dataclass(frozen=True)
class Share:
    directory: Path
    prompts: list[list[int]]


def generate_as_rank(place: Place) -> Any:
    """Every rank leads itself: tensor parallel ranks all have the logits."""
    with place.joined() as groups:
        share: Share = place.argument
        return PagedModel(share.directory, groups=groups).greedy(share.prompts, MOST, chunk=40)


@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v3", "gpt-oss"])
def test_two_tensor_parallel_ranks_generate_the_same_tokens(
    family_model: FamilyModel, tmp_path: Path, name: str
) -> None:
    directory = family_model(name)
    with RankGroup(generate_as_rank, Sizes(tp=2), tmp_path, argument=Share(directory, prompts())) as ranks:
        first, second = ranks.results()
    assert first == second
    check(Golden(directory), first)


def test_bfloat16_weights_are_read_as_they_are_stored(family_model: FamilyModel, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    directory = family_model("deepseek-v3")
    for file in directory.iterdir():
        if file.suffix == ".safetensors":
            halves = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
            save_file(halves, tmp_path / file.name, metadata={"format": "pt"})
        else:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    check(Golden(tmp_path), PagedModel(tmp_path).greedy(prompts(), MOST))
