"""The decode ranks that a prefill rank talks with: how each is answered, and what is written to it and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pdcore.engine.kv.layout import KvLayout
from pdcore.engine.transfer import channel, wire
from pdcore.engine.transfer.greeting import Met, greet, other_version
from pdcore.engine.transfer.mapping import GroupSizes
from pdcore.engine.transfer.pair_plan import PairPlan
from pdcore.engine.transfer.plan import RegionShape
from pdcore.telemetry import logger

_OUTBOX_MOST: Final = 4096

Send = Callable[[bytes, bytes], channel.Sending]
"""Sends a frame over a route."""


@dataclass(slots=True)
class DecodeRank:
    """How to answer one decode rank, and what to write to it. ``route`` follows its latest message: a reconnect
    changes it. ``plan`` and ``shape`` are there once it was met."""

    route: bytes
    outbox: channel.Outbox
    plan: PairPlan | None = None
    shape: RegionShape | None = None
    probing: bool = False


class DecodeRanks:
    """Those that said hello over a link that lives, by its token. ``layout`` is the whole model's, ``source`` this
    rank's memory."""

    def __init__(
        self, *, layout: KvLayout, source: RegionShape, sizes: GroupSizes, identity: wire.RankIdentity
    ) -> None:
        self._layout = layout
        self._source = source
        self._sizes = sizes
        self._identity = identity
        self._ranks: dict[bytes, DecodeRank] = {}
        self._log = logger(__name__)

    def __getitem__(self, token: bytes) -> DecodeRank:
        """The rank at the other end; KeyError when there is none."""
        return self._ranks[token]

    def get(self, token: bytes) -> DecodeRank | None:
        """The same, None when there is none."""
        return self._ranks.get(token)

    @property
    def dropped(self) -> int:
        """Messages for ranks that take none."""
        return sum(rank.outbox.dropped for rank in self._ranks.values())

    def heard(self, token: bytes, route: bytes) -> None:
        """Whoever has the link answers over ``route`` now."""
        made = DecodeRank(route, channel.Outbox(_OUTBOX_MOST))
        self._ranks.setdefault(token, made).route = route

    def meet(self, hello: wire.Hello | wire.Greeting, offered: int) -> Met | str:
        """What this rank will write to one that is new and offered so many bytes, or why it will not."""
        problem = other_version(hello) or "it says hello in words of another version"
        if isinstance(hello, wire.Hello) and other_version(hello) is None:
            met = greet(hello, self._identity, self._layout, self._sizes, self._source, offered)
            if not isinstance(met, str):
                rank = self._ranks[hello.token]
                rank.plan, rank.shape = met.plan, met.pair.shape
                return met
            problem = met
        peer = str(hello.decode) if isinstance(hello, wire.Hello) else "a decode rank"
        self._log.warning("decode rank refused", peer=peer, reason=problem)
        return problem

    def answer_hello(self, token: bytes, problem: str | None) -> None:
        """Welcome it, unless there is a problem."""
        said: wire.Welcome | wire.Refused = wire.Welcome(token=token)
        if problem is not None:
            said = wire.Refused(token=token, message=wire.short(problem))
        self._ranks[token].outbox.put("hello", wire.encode(said))

    def say(self, token: bytes, message: wire.ToDecode) -> None:
        """Queue a message; one of its kind about the same seq that still waits is replaced."""
        rank = self._ranks.get(token)
        if rank is not None:
            key = (type(message), getattr(message, "seq", 0))
            rank.outbox.put(key, wire.encode(message))

    def flush(self, send: Send) -> None:
        """Send what is queued, as far as it is taken."""
        for rank in self._ranks.values():
            if len(rank.outbox):
                rank.outbox.flush(partial(send, rank.route))

    def forget(self, token: bytes) -> None:
        """Its link is gone."""
        self._ranks.pop(token, None)
