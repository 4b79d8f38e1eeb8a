"""The seam between a pick and the requests its legs send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pdcore.router.api import PATHS, ClientRequest
from pdcore.router.exchange import Leg
from pdcore.router.pick import Pick
from pdcore.router.upstream import Post
from pdcore.topology.instance import Instance

KV_MARK: Final = "x-pdcore-kv"
KV_RECEIVED: Final = "received"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What is decided for one attempt before a protocol shapes it. ``room`` is fresh for each."""

    request: ClientRequest
    model: str
    pick: Pick
    room: int
    request_id: str
    remaining_ms: int
    forwarded: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegPlan:
    """One leg: who gets what."""

    leg: Leg
    instance: Instance
    post: Post


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every leg of an attempt, all to be sent at once. The ``decode`` leg is the one that answers the client."""

    legs: tuple[LegPlan, ...]
    room: int


class Handshake(Protocol):
    """One protocol. Pure."""

    def plan(self, attempt: Attempt) -> Plan:
        """The legs of ``attempt``."""
        ...


def post(
    attempt: Attempt, instance: Instance, fields: Mapping[str, object], headers: Mapping[str, str]
) -> Post:
    """The request for one leg: the client's fields, the model in any case, then ``fields``."""
    named = {} if attempt.request.model is not None else {"model": attempt.model}
    return Post(
        url=instance.record.url.rstrip("/") + PATHS[attempt.request.endpoint],
        headers={
            **attempt.forwarded,
            "accept": "text/event-stream" if attempt.request.stream else "application/json",
            "x-request-id": attempt.request_id,
            "x-pdcore-remaining-ms": str(attempt.remaining_ms),
            **headers,
        },
        body=attempt.request.body({**named, **fields}),
    )
