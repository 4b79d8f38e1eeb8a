"""What a leader answers requests with: the seams towards text, ranks and peers, in one value."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pdcore.clock import Clock
from pdcore.engine.answer import WRITE_IDLE_S
from pdcore.engine.legs import Leg
from pdcore.engine.load import HEADER, Load, load_header, load_sample
from pdcore.engine.messages import Start, Stats
from pdcore.engine.metrics import Metrics
from pdcore.engine.prompts import Message
from pdcore.engine.replies import Reply
from pdcore.engine.state import LeaderState
from pdcore.engine.transcript import Detokenizing
from pdcore.engine.transfer.orders import PrefillGroup
from pdcore.registry.rooms.writer import RoomWriter
from pdcore.topology.keys import RankPosition


class Texts(Protocol):
    """The model's text side."""

    eos_token_ids: tuple[int, ...]

    @property
    def longest_token_bytes(self) -> int: ...

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] | None = None,
        arguments: Mapping[str, object] | None = None,
    ) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizing: ...


class Ranks(Protocol):
    """The dispatch, as far as a request needs it."""

    def open(
        self, start: Start, rank: RankPosition, news: asyncio.Event | None = None
    ) -> AbstractContextManager[Reply]: ...

    def least_held_rank(self) -> RankPosition: ...

    @property
    def max_held(self) -> int: ...

    @property
    def stats(self) -> Mapping[RankPosition, Stats]: ...


class PrefillPeers(Protocol):
    """Who can feed a decode leg."""

    async def prefill(self, leg: Leg, expected: str | None) -> PrefillGroup: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything a request needs, built once per process.

    ``vocab_size`` is the model's: no token id may reach it. ``serial`` makes internal request ids unique. ``choices`` is
    where a prefill engine that chooses DP ranks says so; None when it takes what the router chose. ``trouble`` says what
    is wrong with the ranks, ``drain`` stops taking requests.
    """

    state: LeaderState
    texts: Texts
    ranks: Ranks
    peers: PrefillPeers
    metrics: Metrics
    load: Load
    clock: Clock
    max_body_bytes: int
    request_timeout_s: float
    vocab_size: int
    serial: itertools.count[int]
    choices: RoomWriter | None = None
    trouble: Callable[[], str | None] = lambda: None
    drain: Callable[[], None] = lambda: None
    write_idle_s: float = WRITE_IDLE_S

    def load_sample(self) -> dict[str, object]:
        """How busy it is now."""
        return load_sample(self.state, self.ranks.stats, self.load.tokens_s(self.clock.now()))

    def load_header(self) -> dict[str, str]:
        """The same, as the header that every answer has."""
        return {HEADER: load_header(self.state, self.ranks.stats, self.load.tokens_s(self.clock.now()))}
