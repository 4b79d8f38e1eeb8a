"""The life of one request: pick, rooms, attempts, retries, until the client has an answer or an error.

What may be tried again is decided in :mod:`pdcore.router.exchange` and :mod:`pdcore.router.retries`; here it is only
counted.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from pdcore.config import RouterConfig
from pdcore.errors import ApiError
from pdcore.registry.follower import Follower
from pdcore.registry.overlay.fleet import Fleet
from pdcore.router.access import OPEN, Access
from pdcore.router.answer import ClientAnswer
from pdcore.router.api import TOKENIZING, ClientRequest
from pdcore.router.budget import Budget
from pdcore.router.callbacks import Callback
from pdcore.router.chance import fresh_room
from pdcore.router.contacts import Contacts, takes_over
from pdcore.router.dispatch import AttemptRun, Presentation, Verdict
from pdcore.router.exchange import Phase, decide
from pdcore.router.fixed.fleet import FixedFleet
from pdcore.router.ground import Ground
from pdcore.router.leg_failure import LegFailure
from pdcore.router.load import Ledger
from pdcore.router.models import meant
from pdcore.router.pick import NoPair, Pick, Rules, Want, pick
from pdcore.router.policies.prompt_memory import PromptMemory
from pdcore.router.prompt_size import estimated_tokens
from pdcore.router.protocols.base import Attempt, Carried
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.relay import rename_room, rename_room_in_event
from pdcore.router.retries import Retries
from pdcore.router.rooms import ClientRooms, Release


class Trace(Struct, kw_only=True):
    """What the access line tells of a request; filled in as it goes. ``client`` is the name of its API key.

    ``arrived``: the whole request is here.
    """

    arrived: bool = False
    client: str | None = None
    items: int = 1
    stream: bool = False
    pair: str | None = None
    room: int | None = None
    revision: int | None = None
    attempts: int = 0
    error: str | None = None

    def add_to(self, fields: dict[str, object]) -> None:
        """Add what is worth a field only where it says something."""
        if self.client is not None:
            fields["client"] = self.client
        if self.items > 1:
            fields["items"] = self.items
        if self.stream:
            fields["stream"] = True
        if self.error is not None:
            fields["error"] = self.error


class Incoming(Struct, frozen=True, kw_only=True):
    """A parsed request and what came with it."""

    request: ClientRequest
    request_id: str
    forwarded: Mapping[str, str]
    budget: Budget
    trace: Trace
    candidate: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Everything that serves requests for as long as the router lives."""

    config: RouterConfig
    ground: Ground
    follower: Follower
    fleet: Fleet
    ledger: Ledger
    rules: Rules
    prompts: PromptMemory
    handshakes: Mapping[str, Handshake]
    contacts: Contacts
    client_rooms: ClientRooms
    access: Access = OPEN
    fixed: FixedFleet | None = None


async def serve(serving: Serving, incoming: Incoming, client: ClientAnswer) -> None:
    """Answer one request; raises :class:`ApiError` or :class:`LegFailure` for what the client must be told."""
    witness, request = serving.ground.witness, incoming.request
    refused_s = witness.came(request)
    if refused_s:
        raise _kills(refused_s)
    want = _want(serving, request, incoming.candidate)
    if request.room_name is None:
        await _attempts(serving, incoming, client, want)
    else:

        def attempts(release: Release) -> Awaitable[None]:
            client.before_end = release
            return _attempts(serving, incoming, client, want)

        await serving.client_rooms.while_claimed(request.room_name, attempts)
    witness.answered(request)


async def _attempts(serving: Serving, incoming: Incoming, client: ClientAnswer, want: Want) -> None:
    """Attempt it until one finishes, or raise the failure of the last."""
    retries: Retries | None = None
    failure: LegFailure | None = None
    carried: Carried | None = None
    for number in range(serving.config.max_attempts):
        incoming.trace.attempts = number + 1
        chosen = _for_endpoint(incoming.request, _choose(serving, want, failure, carried))
        carried = carried if carried is not None and takes_over(chosen, carried) else None
        verdict = await _attempt(serving, incoming, want.model, chosen, client, carried)
        failure = verdict.failure
        if failure is None:
            return
        if client.started or number + 1 == serving.config.max_attempts:
            raise failure
        retries = retries or _retries(serving)
        again = await retries.next(want, chosen, verdict)
        if again is None:
            raise failure
        want, carried = again, verdict.left


def _retries(serving: Serving) -> Retries:
    return Retries(
        fleet=serving.fleet,
        witness=serving.ground.witness,
        pick=partial(_pick, serving),
        now=serving.ground.clock.now,
        counted=serving.ground.metrics.retried,
    )


def _kills(refused_s: float) -> ApiError:
    why = "two instances died while they held this request"
    return ApiError("decode_failed", f"refused: {why}", retry_after_s=math.ceil(refused_s))


def _want(serving: Serving, request: ClientRequest, candidate: tuple[str, int] | None) -> Want:
    """What to pick for ``request`` on today's view; 400 and 404 come from here, before anything is sent."""
    topology = serving.fleet.topology
    pinned = None
    if request.prefill_address is not None:
        host, port = request.prefill_address
        instance = topology.by_bootstrap(host, port)
        if instance is None:
            why = "does not name a registered prefill instance"
            raise ApiError("invalid_request", f"bootstrap_host/bootstrap_port {why}", param="bootstrap_host")
        pinned = instance.instance_id
    if candidate is not None and request.model is not None:
        return Want(model=request.model, candidate=candidate, draw=fresh_room())
    model = _model(serving, request.model)
    if request.prefill_dp_rank is not None:
        _check_dp_rank(serving, model, pinned, request.prefill_dp_rank)
    return Want(
        model=model,
        pinned_prefill=pinned,
        prefill_dp_rank=request.prefill_dp_rank,
        prefers_unified=_is_small(serving, request),
        room=request.room_name,
        draw=fresh_room(),
        prefix=serving.prompts.see(model, request, serving.ground.clock.now()),
    )


def _is_small(serving: Serving, request: ClientRequest) -> bool:
    limit = serving.config.unified_below_tokens
    return limit > 0 and estimated_tokens(request.fields) < limit


def _model(serving: Serving, asked: str | None) -> str:
    known = serving.fleet.topology.models()
    if not known:
        raise unavailable(serving, "no instance is registered")
    return meant(tuple(known), asked)


def _check_dp_rank(serving: Serving, model: str, pinned: str | None, rank: int) -> None:
    prefills = serving.fleet.topology.by_role("prefill")
    sizes = [
        one.record.dp_size
        for one in prefills
        if model in one.record.models and pinned in (None, one.instance_id)
    ]
    if sizes and rank >= max(sizes):
        why = f"must be from 0 to {max(sizes) - 1}, got {rank}"
        raise ApiError("invalid_request", f"disagg_prefill_dp_rank {why}", param="disagg_prefill_dp_rank")


def unavailable(serving: Serving, why: str, detail: dict[str, object] | None = None) -> ApiError:
    """The 503 for a request that no instance can take now, saying also what is wrong with the store."""
    error = serving.follower.last_error
    store = "" if error is None else f"; not following the store: {error}"
    return ApiError(
        "backend_unavailable", f"backend unavailable: {why}{store}", detail=detail, retry_after_s=1
    )


def _pick(serving: Serving, want: Want) -> Pick | NoPair:
    view = serving.ground.witness.view()
    return pick(view.topology, want, serving.ledger, serving.rules, view)


def _choose(serving: Serving, want: Want, failure: LegFailure | None, carried: Carried | None) -> Pick:
    """A pair for ``want``: if another decode can take over what was ``carried``, with the prefill that holds it."""
    if carried is not None:
        kept = _pick(serving, replace(want, pinned_prefill=carried.prefill[0]))
        if isinstance(kept, Pick) and takes_over(kept, carried):
            return kept
    chosen = _pick(serving, want)
    if isinstance(chosen, Pick):
        return chosen
    if failure is not None:
        raise failure
    raise unavailable(serving, chosen.sentence(), chosen.detail())


def _for_endpoint(request: ClientRequest, chosen: Pick) -> Pick:
    """Where nothing is generated, decode alone is asked."""
    if request.endpoint not in TOKENIZING:
        return chosen
    return replace(chosen, prefill=None, prefill_dp_rank=None)


async def _attempt(
    serving: Serving,
    incoming: Incoming,
    model: str,
    chosen: Pick,
    client: ClientAnswer,
    carried: Carried | None,
) -> Verdict:
    handshake = serving.handshakes[protocol_of(chosen)]
    handshake.check(incoming.request)
    items = incoming.request.items
    rooms = (fresh_room(),) if items == 1 else tuple(fresh_room() for _ in range(items))
    name = chosen.name
    incoming.trace.pair, incoming.trace.revision = name, chosen.revision
    attempt = Attempt(
        request=incoming.request,
        model=model,
        pick=chosen,
        rooms=rooms,
        request_id=incoming.request_id,
        remaining_ms=incoming.budget.remaining_ms(serving.ground.clock.now()),
        forwarded=incoming.forwarded,
        carried=carried,
    )
    incoming.trace.room = attempt.room
    seen = serving.ground.witness.over(chosen, incoming.request)
    shown = _presentation(incoming.request, name, chosen.revision)
    callback: Callback | None = None
    holds = serving.ledger.take(chosen)
    if carried is not None:
        holds[carried.prefill[0]].release()  # it has done its part
    try:
        plan, callback = await serving.contacts.plan(handshake, attempt)
        run = AttemptRun(plan, serving.ground, seen, incoming.budget, client, shown, holds, callback)
        verdict = await run.run()
        if verdict.failure is not None:
            serving.contacts.failed(chosen)
        return verdict
    except LegFailure as failure:
        seen.failed(failure)
        return Verdict(decide(Phase(), failure.leg, failure.event), failure)
    finally:
        if callback is not None:
            callback.close()
        for hold in holds.values():
            hold.release()


def protocol_of(chosen: Pick) -> str:
    """The handshake a pick speaks; pairs always agree on it."""
    return "unified" if chosen.prefill is None else chosen.decode.record.protocol


def _presentation(request: ClientRequest, pair: str, revision: int) -> Presentation:
    headers = {"x-pdcore-pair": pair, "x-pdcore-revision": str(revision)}
    name, items = request.room_name, request.items
    if name is None:
        return Presentation(headers=headers, items=items)
    headers["x-pdcore-room"] = str(name)
    if request.endpoint != "generate":
        return Presentation(headers=headers, items=items)
    return Presentation(
        headers=headers,
        items=items,
        body=partial(rename_room, room=name),
        event=partial(rename_room_in_event, room=name),
    )
