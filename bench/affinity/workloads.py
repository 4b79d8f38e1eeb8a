"""Conversations and tenants: six kinds of traffic whose prompts begin alike in different ways.

A prompt is a row of parts; equal rows make equal blocks of KV, and equal text. Sizes are in tokens, four characters
each. Every workload is a function of its seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128
from typing import Final, NamedTuple

BLOCK_TOKENS: Final = 64
CHARACTERS_PER_TOKEN: Final = 4
USER_TOKENS: Final = 100
ANSWER_TOKENS: Final = 200


class Part(NamedTuple):
    """A stretch of a prompt that is the same wherever it occurs."""

    role: str
    name: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """What arrives ``at`` which second, in which conversation."""

    at: float
    conversation: int
    parts: tuple[Part, ...]

    def blocks(self, known: dict[tuple[int, tuple[object, ...]], int]) -> list[int]:
        """The prompt's full KV blocks; ``known`` numbers each chain of blocks once."""
        chain, held, filled = [], [], 0
        last = -1
        for part in self.parts:
            done = 0
            while done < part.tokens:
                taken = min(BLOCK_TOKENS - filled, part.tokens - done)
                held.append((part.role, part.name, done, taken))
                filled, done = filled + taken, done + taken
                if filled == BLOCK_TOKENS:
                    last = known.setdefault((last, tuple(held)), len(known))
                    chain.append(last)
                    held, filled = [], 0
        return chain

    def prompt(self) -> bytes:
        """The raw JSON of its messages."""
        return b"[" + b", ".join(map(_message, self.parts)) + b"]"


@lru_cache(maxsize=4096)
def _message(part: Part) -> bytes:
    size = part.tokens * CHARACTERS_PER_TOKEN
    text = shake_128(repr(part[:2]).encode()).hexdigest(size // 2)
    return b'{"role": "%s", "content": "%s"}' % (part.role.encode(), text.encode())


def conversations(
    seed: int,
    count: int,
    *,
    systems: int,
    system_tokens: int = 1024,
    rate: float = 60,
    open_at_once: int = 400,
    turns: int = 8,
) -> list[Request]:
    """Conversations of ``turns`` turns, each behind one of a few system prompts."""
    dice, now, started = random.Random(seed), 0.0, 0
    live: list[list[int]] = []  # number, system prompt, turns so far
    requests: list[Request] = []
    while len(requests) < count:
        now += dice.expovariate(rate)
        if len(live) < open_at_once and (not live or dice.random() < 0.3):
            one = [started, dice.randrange(systems), 0]
            live.append(one)
            started += 1
        else:
            one = dice.choice(live)
        number, system, turn = one
        said = [Part("system", (system,), system_tokens)]
        for past in range(turn):
            said += [
                Part("user", (number, past), USER_TOKENS),
                Part("assistant", (number, past), ANSWER_TOKENS),
            ]
        requests.append(Request(now, number, (*said, Part("user", (number, turn), USER_TOKENS))))
        one[2] += 1
        if one[2] >= turns:
            live.remove(one)
    return requests


def tenants(
    seed: int, count: int, *, many: int = 150, context_tokens: int = 6000, rate: float = 25, zipf: float = 0.0
) -> list[Request]:
    """Single questions about the long context of one of ``many`` tenants; their shares follow Zipf's law."""
    dice, now = random.Random(seed), 0.0
    weights = [1 / (number + 1) ** zipf for number in range(many)]
    requests: list[Request] = []
    for number in range(count):
        now += dice.expovariate(rate)
        tenant = dice.choices(range(many), weights)[0]
        asked = Part("user", (-1, number), 200)
        context = Part("system", (-1, tenant), context_tokens)
        requests.append(Request(now, -1 - number, (context, asked)))
    return requests


def _mixed(scale: float) -> list[Request]:
    one = conversations(3, int(6000 * scale), systems=5, rate=30, open_at_once=200)
    other = tenants(5, int(4000 * scale), many=60, rate=15)
    return list(heapq.merge(one, other, key=lambda request: request.at))


WORKLOADS: Final[Mapping[str, Callable[[float], Sequence[Request]]]] = {
    "multi-turn, 5 system prompts": lambda scale: conversations(3, int(12000 * scale), systems=5),
    "multi-turn, 1 system prompt": lambda scale: conversations(4, int(12000 * scale), systems=1),
    "multi-turn, 60 system prompts of 2k": lambda scale: conversations(
        8, int(12000 * scale), systems=60, system_tokens=2048, rate=40
    ),
    "150 tenants, 6k context each": lambda scale: tenants(5, int(8000 * scale)),
    "the same, Zipf 1": lambda scale: tenants(6, int(8000 * scale), zipf=1.0),
    "both mixed": _mixed,
}
"""By name; each takes the share of its whole length that is wanted."""
