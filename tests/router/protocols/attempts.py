"""Attempts as the router makes them, for tests of what a protocol makes of them."""

from __future__ import annotations

import json
from typing import Any, Final

from pdcore.router.api import Endpoint, parse
from pdcore.router.pick import Pick
from pdcore.router.protocols.base import Attempt, LegPlan, Plan
from pdcore.router.upstream import Post
from pdcore.topology.instance import Instance
from pdcore.topology.records import Role
from tests.router.fleet import record

ROOM: Final = 0x1234


def instance(role: Role, **changes: Any) -> Instance:
    """A ready one."""
    name = role[0]
    made = record(role, f"http://{name}:8000/", **changes)
    return Instance(instance_id=name, record=made, mod_revision=1, ranks={}, uncounted={}, order=None)


def attempt(
    body: dict[str, Any],
    endpoint: Endpoint = "completions",
    *,
    prefill: Instance | None = None,
    dp_rank: int | None = None,
    rooms: tuple[int, ...] = (ROOM,),
    **more: Any,
) -> Attempt:
    """One for ``body``, sent to ``p`` and ``d``."""
    pick = Pick(
        prefill=prefill or instance("prefill"),
        decode=instance("decode"),
        prefill_dp_rank=dp_rank,
        revision=7,
    )
    return Attempt(
        request=parse(endpoint, json.dumps(body).encode()),
        model="tiny",
        pick=pick,
        rooms=rooms,
        request_id="me",
        remaining_ms=1000,
        forwarded={"traceparent": "00"},
        **more,
    )


def body_of(post: Post) -> dict[str, Any]:
    """What a leg carries."""
    found: dict[str, Any] = json.loads(post.body)
    return found


def legs_of(plan: Plan) -> dict[str, LegPlan]:
    """The legs that are sent at once, by name."""
    return {leg.leg: leg for leg in plan.legs}
