"""The seam between a pick and the requests its legs send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct

from pdcore.router.api import PATHS, ClientRequest
from pdcore.router.exchange import Leg
from pdcore.router.models import ANY_MODEL
from pdcore.router.pick import InstanceKey, Pick
from pdcore.router.upstream import Post
from pdcore.topology.instance import Instance

KV_MARK: Final = "x-pdcore-kv"
KV_RECEIVED: Final = "received"


class Carried(Struct, frozen=True, kw_only=True):
    """What a prefill answered in an earlier attempt: its KV waits for whichever decode brings this along."""

    prefill: InstanceKey
    room: int
    words: bytes


class Attempt(Struct, frozen=True, kw_only=True):
    """What is decided for one attempt before a protocol shapes it.

    ``rooms`` are fresh, one per (prompt, sample), prompt-major; when ``carried`` is given, the KV is there already and
    only decode is asked. ``learned`` is what the protocol's question was answered with, ``callback_url`` where an
    engine reaches this attempt; both only for a protocol that asks for them.
    """

    request: ClientRequest
    model: str
    pick: Pick
    rooms: tuple[int, ...]
    request_id: str
    remaining_ms: int
    forwarded: Mapping[str, str]
    learned: object | None = None
    callback_url: str | None = None
    carried: Carried | None = None

    @property
    def room(self) -> int:
        """The attempt's name: its first room, or that of the hand-off it carries on."""
        return self.rooms[0] if self.carried is None else self.carried.room


class LegPlan(Struct, frozen=True, kw_only=True):
    """One leg: who gets what."""

    leg: Leg
    instance: Instance
    post: Post


class SecondLeg(Struct, frozen=True, kw_only=True):
    """A leg that nobody can word before the first hop has spoken: ``after`` its answer, or its callback.

    ``make`` turns those words into the request; raises :class:`Unreadable`.
    """

    leg: Leg
    instance: Instance
    after: Literal["answer", "callback"]
    make: Callable[[bytes], Post]


class Plan(Struct, frozen=True, kw_only=True):
    """The legs of an attempt: those to be sent at once, and the one that follows. ``decode`` answers the client."""

    legs: tuple[LegPlan, ...]
    room: int
    second: SecondLeg | None = None


class Question(Struct, frozen=True, kw_only=True):
    """What must be known of an instance before it can be asked to work: a GET, and how its answer reads.

    The answer holds for the incarnation in ``key``. ``read`` raises :class:`Unreadable`.
    """

    key: InstanceKey
    url: str
    read: Callable[[bytes], object]


def url_of(attempt: Attempt, instance: Instance) -> str:
    """Where ``instance`` serves the endpoint that the client asked."""
    return instance.record.url.rstrip("/") + PATHS[attempt.request.endpoint]


def post(
    attempt: Attempt, instance: Instance, fields: Mapping[str, object], headers: Mapping[str, str]
) -> Post:
    """The request for one leg: the client's fields, the model in any case, then ``fields``."""
    is_named = attempt.request.model is not None or attempt.model == ANY_MODEL
    named = {} if is_named else {"model": attempt.model}
    return Post(
        url=url_of(attempt, instance),
        headers={
            **attempt.forwarded,
            "accept": "text/event-stream" if attempt.request.stream else "application/json",
            "x-request-id": attempt.request_id,
            "x-pdcore-remaining-ms": str(attempt.remaining_ms),
            **headers,
        },
        body=attempt.request.body({**named, **fields}),
    )
