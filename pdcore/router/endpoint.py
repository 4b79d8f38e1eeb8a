"""The generation endpoints as plain ASGI: read, parse, serve, and end exactly once whoever leaves first.

While a request is served, three things can end it: its own answer, the client going away (watched all the time, also
before the first byte), and the router stopping. All counters of a request are held by ``with`` blocks around that.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

from starlette.types import Receive, Scope, Send

from pdcore.errors import ApiError
from pdcore.router import headers
from pdcore.router.answer import OUTLET, ClientAnswer
from pdcore.router.api import Endpoint, parse
from pdcore.router.budget import Budget
from pdcore.router.candidate import candidate_of
from pdcore.router.departure import while_there
from pdcore.router.interrupt import Interrupt
from pdcore.router.leg_failure import LegFailure, api_error
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.serving import Incoming, Serving, Trace, serve
from pdcore.telemetry import record

Ending = Literal["gone", "stopping", "slow"]

CLOSE: Final = {"connection": "close"}


class GenerationEndpoint:
    """One of the three generation routes."""

    def __init__(self, endpoint: Endpoint, serving: Serving, lifecycle: Lifecycle) -> None:
        self._endpoint = endpoint
        self._serving = serving
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock, metrics = self._serving.ground.clock, self._serving.ground.metrics
        started, trace = clock.now(), Trace()
        interrupt: Interrupt[Ending] = Interrupt()
        client = ClientAnswer(
            send,
            now=clock.now,
            on_slow=partial(interrupt.strike, "slow"),
            write_timeout_s=self._serving.config.idle_timeout_s,
            outlet=scope.get("extensions", {}).get(OUTLET),
            on_start=metrics.answering.inc,
        )
        outcome = "internal"
        metrics.in_flight.inc()
        try:
            with self._lifecycle.request():
                with interrupt:
                    outcome = await self._handle(scope, receive, client, trace, interrupt)
                if interrupt.reason is not None:
                    outcome = await self._cut_short(interrupt.reason, client, trace)
        finally:
            client.patience.cancel()
            metrics.in_flight.dec()
            self._tally(client, trace, outcome, started, clock.now())

    def _tally(self, client: ClientAnswer, trace: Trace, outcome: str, started: float, now: float) -> None:
        """Count the request that is over, and write its line; nothing of what a client asked or was told is in it."""
        metrics, pace = self._serving.ground.metrics, client.pace
        metrics.ended(self._endpoint, outcome, now - started)
        metrics.streamed(started, pace)
        if client.started:
            metrics.answering.dec()
        fields: dict[str, object] = {
            "endpoint": self._endpoint,
            "outcome": outcome,
            "status": client.status,
            "request_id": client.request_id,
            "room": trace.room,
            "pair": trace.pair,
            "revision": trace.revision,
            "attempts": trace.attempts,
            "seconds": round(now - started, 4),
        }
        first_s = pace.first_after_s(started)
        if first_s is not None:
            fields["events"], fields["ttft"] = pace.count, round(first_s, 4)
        trace.add_to(fields)
        record("request", fields)

    async def _handle(
        self, scope: Scope, receive: Receive, client: ClientAnswer, trace: Trace, interrupt: Interrupt[Ending]
    ) -> str:
        """Serve it; the outcome as the metrics name it."""
        try:
            incoming = await self._read(scope, receive, client, trace)
            if incoming is None:
                return "cancelled"
            await self._until_ended(scope, receive, client, incoming, interrupt)
        except ApiError as error:
            trace.error = _without_words(error)
            return await self._tell(client, error)
        except LegFailure as failure:
            trace.error = str(failure)
            return await self._tell(client, api_error(failure), failure)
        return "ok"

    async def _cut_short(self, ending: Ending, client: ClientAnswer, trace: Trace) -> str:
        """What ended it if not itself. Who leaves or does not read is told nothing, who only sends too slowly is."""
        if ending == "stopping":
            error = _stopping()
        elif ending == "slow" and not trace.arrived:
            budget_s = self._serving.config.idle_timeout_s
            error = ApiError("deadline_exceeded", f"the request did not arrive within {budget_s:g} s")
            trace.error = error.message
        else:
            return "cancelled"
        with Interrupt[Ending]() as interrupt:
            client.hurry(partial(interrupt.strike, "slow"))
            return await self._tell(client, error)
        return "cancelled"

    async def _tell(self, client: ClientAnswer, error: ApiError, failure: LegFailure | None = None) -> str:
        raw = failure.raw if failure is not None else None
        if client.started:
            self._serving.ground.metrics.broken_streams.inc()
        await client.fail(error, raw)
        return "passed_through" if raw is not None else error.code

    async def _read(
        self, scope: Scope, receive: Receive, client: ClientAnswer, trace: Trace
    ) -> Incoming | None:
        """What was sent; None when the client left while it was still sending."""
        raw = scope["headers"]
        head = headers.read(raw)
        client.request_id = head.request_id
        candidate = None
        if head.candidate is None:
            trace.client = self._serving.access.client(raw)
        else:
            candidate = candidate_of(self._serving.fleet.topology, head.candidate)
        self._lifecycle.admit()
        config = self._serving.config
        now = self._serving.ground.clock.now()
        client.patience.set(now + config.idle_timeout_s)
        body = await _body(receive, head.content_length, config.max_body_bytes)
        client.patience.set(None)
        if body is None:
            return None
        trace.arrived = True
        request = parse(self._endpoint, body)
        trace.items, trace.stream = request.items, request.stream
        return Incoming(
            request=request,
            request_id=client.request_id,
            forwarded=head.forwarded | self._serving.access.towards_engines(),
            budget=Budget.of(config, now=now, stream=request.stream),
            trace=trace,
            candidate=candidate,
        )

    async def _until_ended(
        self,
        scope: Scope,
        receive: Receive,
        client: ClientAnswer,
        incoming: Incoming,
        interrupt: Interrupt[Ending],
    ) -> None:
        """Serve it until that ends, the client is gone, or the router stops.

        A client that leaves after its answer is complete has left nothing behind: then serving it ends by itself.
        """
        if self._lifecycle.stopping:
            raise _stopping()

        def end(ending: Ending) -> None:
            if not client.ended:
                interrupt.strike(ending)

        stop = partial(end, "stopping")
        self._lifecycle.tell(stop)
        try:
            await while_there(scope, receive, partial(end, "gone"), serve(self._serving, incoming, client))
        finally:
            self._lifecycle.forget(stop)


async def _body(receive: Receive, announced: int | None, limit: int) -> bytes | None:
    if announced is not None and announced > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError("body_too_large", f"the body is larger than {limit} bytes")


def _stopping() -> ApiError:
    return ApiError("backend_unavailable", "the router is stopping", retry_after_s=1)


def _without_words(error: ApiError) -> str:
    """The error for the log: what names a field may repeat what a client put there."""
    return error.message if error.param is None else f"{error.code}: {error.param}"
