"""How fast: decode, prompts, a Poisson load, a prompt that comes again. Ours and theirs alternately, round by round."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Final

import torch

from bench.figures import Figure
from bench.models.ours import Ours
from bench.models.theirs import Theirs
from bench.progress import step
from pdcore.config import demo_model_directory
from pdcore.engine.demo_model import is_complete

BATCHES: Final = (1, 8, 32)
PROMPT: Final = 64
STEPS: Final = 32
LONG: Final = 1000
REPEATED: Final = 2000
STATIC: Final = 16
"""Sequences of a static batch, and of a step of ours under the Poisson load."""
REQUESTS: Final = 48
ARRIVALS_PER_S: Final = 8.0
_COPIED: Final = 256 << 20

Prompt = list[int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the Poisson load."""

    at_s: float
    prompt: Prompt
    tokens: int


@cache
def _ours(max_batch: int = 32) -> Ours:
    directory = demo_model_directory()
    if not is_complete(directory):
        raise SystemExit(f"bench: {directory} is not there: pdcore demo-model makes it")
    return Ours(directory, max_batch=max_batch)


@cache
def _theirs() -> Theirs:
    return Theirs(demo_model_directory())


def decode(rounds: int) -> list[Figure]:
    """Milliseconds per step at each batch size; of ours also beside the time the memory needs."""
    ours, theirs = _ours(), _theirs()
    copied = copy_bytes_per_s()
    figures = []
    for size in BATCHES:
        prompts = [_prompt(PROMPT, (size, row)) for row in range(size)]

        def their_steps(prompts: Sequence[Prompt] = prompts) -> float:
            return _timed(lambda: theirs.generate(prompts, 1 + STEPS)) - _timed(
                lambda: theirs.generate(prompts, 1)
            )

        def our_steps(prompts: Sequence[Prompt] = prompts) -> float:
            names = [ours.add(prompt, 1 + STEPS) for prompt in prompts]
            ours.until_first_tokens(names)
            began = time.perf_counter()
            made = ours.finish()  # prompts that were computed first are ahead
            return (time.perf_counter() - began) / made * len(names) * STEPS

        took = _medians(f"batch {size}", rounds, our_steps, their_steps)
        mine, other = (seconds / STEPS * 1000 for seconds in took)
        name = f"decode step, batch {size} ({size / mine * 1000:,.0f} tokens/s)"
        figures.append(_beside(name, mine, other, 1 / 1.2))
        needs = ours.step_bytes(size, PROMPT + STEPS // 2) / copied * 1000
        figures.append(
            Figure(
                name=f"memory's share of a step, batch {size}",
                value=needs,
                unit="ms",
                beside="step",
                reference=mine,
            )
        )
    return figures


def prefill(rounds: int) -> list[Figure]:
    """Milliseconds to the first token of a long prompt that nobody has seen."""
    ours, theirs, seeds = _ours(), _theirs(), iter(range(1 << 20))

    def our_prompt() -> float:
        prompt = _prompt(LONG, ("long", next(seeds)))
        return _timed(lambda: ours.until_first_tokens([ours.add(prompt, 1)]))

    def their_prompt() -> float:
        prompt = _prompt(LONG, ("long", next(seeds)))
        return _timed(lambda: theirs.generate([prompt], 1))

    mine, other = (took * 1000 for took in _medians("a long prompt", rounds, our_prompt, their_prompt))
    name = f"prompt of {LONG:,} tokens ({LONG / mine * 1000:,.0f} tokens/s)"
    return [_beside(name, mine, other, 1.0)]


def repeat(rounds: int) -> list[Figure]:
    """Milliseconds to the first token of a long prompt, the second time beside the first."""
    ours = _ours()
    firsts: list[float] = []
    seconds: list[float] = []
    for number in range(rounds):
        prompt = _prompt(REPEATED, ("again", number))
        for took in (firsts, seconds):
            name = ours.add(prompt, 1)
            took.append(_timed(lambda name=name: ours.until_first_tokens([name])))  # type: ignore[misc]
    return [
        Figure(
            name=f"first token of {REPEATED:,} tokens, again",
            value=statistics.median(seconds) * 1000,
            unit="ms",
            beside="the first time",
            reference=statistics.median(firsts) * 1000,
            wanted=0.15,
        )
    ]


def poisson(rounds: int) -> list[Figure]:
    """Milliseconds per wanted token when requests of many lengths keep coming faster than either can serve them."""
    ours, theirs = _ours(STATIC), _theirs()

    def continuous(load: Sequence[Asked]) -> float:
        began, waiting = time.perf_counter(), list(load)
        while waiting or ours.busy:
            while waiting and time.perf_counter() - began >= waiting[0].at_s:
                asked = waiting.pop(0)
                ours.add(asked.prompt, asked.tokens)
            if ours.busy:
                ours.step()
        return time.perf_counter() - began

    def static(load: Sequence[Asked]) -> float:
        """Whoever waits when the batch before is done makes the next one, which takes as long as its longest."""
        began, waiting = time.perf_counter(), list(load)
        while waiting:
            here = [asked for asked in waiting if time.perf_counter() - began >= asked.at_s][:STATIC]
            if here:
                theirs.generate([asked.prompt for asked in here], max(asked.tokens for asked in here))
                waiting = waiting[len(here) :]
        return time.perf_counter() - began

    def per_token(serve: Callable[[Sequence[Asked]], float]) -> Callable[[], float]:
        numbers = count()

        def act() -> float:
            load = _load(next(numbers))
            return serve(load) / sum(asked.tokens for asked in load)

        return act

    mine, other = _medians("a wanted token", rounds, per_token(continuous), per_token(static))
    name = f"Poisson load, wanted token ({1 / mine:,.0f} tokens/s)"
    return [_beside(name, mine * 1000, other * 1000, 1 / 1.5)]


def copy_bytes_per_s() -> float:
    """Bytes read and written per second by the fastest of several large copies."""
    source = torch.ones(_COPIED // 4)
    target = torch.empty_like(source)
    return 2 * _COPIED / min(_timed(lambda: target.copy_(source)) for _ in range(8))


def _load(number: int) -> list[Asked]:
    """The load of round ``number``."""
    dice, at_s, load = random.Random(f"load {number}"), 0.0, []
    for place in range(REQUESTS):
        at_s += dice.expovariate(ARRIVALS_PER_S)
        prompt = _prompt(dice.randint(16, 96), ("poisson", number, place))
        load.append(Asked(at_s, prompt, dice.choice((4, 8, 16, 32, 64))))
    return load


def _prompt(length: int, seed: object) -> Prompt:
    dice = random.Random(repr(seed))
    return [dice.randrange(1000, 40000) for _ in range(length)]


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _medians(what: str, rounds: int, *acts: Callable[[], float]) -> list[float]:
    """The median seconds of each, taken in turns, which are told; a first turn of all is for warming up."""
    took: list[list[float]] = [[] for _ in acts]
    for number in range(rounds + (rounds > 1)):
        turn = [act() for act in acts]
        step(f"{what}, turn {number}: {' beside '.join(f'{seconds:.3f} s' for seconds in turn)}")
        if number or rounds == 1:
            for one, seconds in zip(took, turn, strict=True):
                one.append(seconds)
    return [statistics.median(one) for one in took]


def _beside(name: str, mine: float, theirs: float, wanted: float) -> Figure:
    return Figure(name=name, value=mine, unit="ms", beside="transformers", reference=theirs, wanted=wanted)
