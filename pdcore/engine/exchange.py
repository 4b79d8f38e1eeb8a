"""One HTTP request for text, from its first byte to its log line: budget, disconnect, outcome.

Whatever happens, the request is answered at most once, counted once under one outcome, logged in one line without a
word of its text, and its rank is told when nobody wants it any more.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from starlette.types import Receive, Scope, Send

from pdcore import telemetry
from pdcore.engine import generation, legs
from pdcore.engine.answer import (
    Answer,
    ClientGone,
    check_headers,
    headers_of,
    read_body,
    while_connected,
)
from pdcore.engine.dispatch import Reply
from pdcore.engine.generation import Engine, Job
from pdcore.engine.legs import Expectation
from pdcore.engine.requests import Api, decode_body
from pdcore.errors import ApiError

OK: Final = "ok"
GONE: Final = "cancelled"

log = telemetry.logger(__name__)


class GenerationEndpoint:
    """An ASGI application for one of the generation endpoints."""

    def __init__(self, api: Api, engine: Engine) -> None:
        self._api = api
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._engine.state.answering(), self._engine.metrics.in_flight.track_inprogress():
            await Exchange(self._api, self._engine, scope, receive, send).run()


class Exchange:
    """The life of one request; :meth:`run` never raises but for cancellation."""

    def __init__(self, api: Api, engine: Engine, scope: Scope, receive: Receive, send: Send) -> None:
        self._api = api
        self._engine = engine
        self._scope = scope
        self._receive = receive
        self._headers = headers_of(scope)
        self._request_id = legs.public_request_id(self._headers) or f"req-{secrets.token_hex(12)}"
        self._answer = Answer(send, self._request_id, write_idle_s=engine.write_idle_s)
        self._began = engine.clock.now()
        self._facts: dict[str, object] = {}

    async def run(self) -> None:
        """Answer, count, log."""
        outcome = GONE
        with telemetry.bound(request_id=self._request_id):
            try:
                outcome = await self._outcome()
            finally:
                self._record(outcome)

    async def _outcome(self) -> str:
        try:
            return await self._answered()
        except ClientGone as gone:
            self._facts["error"] = str(gone)
            return GONE

    async def _answered(self) -> str:
        """Answer; ``ok``, or the code of the error that was told to the client."""
        try:
            await self._run()
            return OK
        except ClientGone:
            raise
        except ApiError as error:
            failure = error
        except Exception as broken:
            log.exception("request broke", reason=repr(broken))
            failure = ApiError("internal", "the engine failed; its log says why")
        self._facts["error"] = failure.message
        await self._answer.fail(failure)
        return failure.code

    async def _run(self) -> None:
        state = self._engine.state
        check_headers(self._scope)
        expected = legs.parse_expectation(self._headers)
        refused = legs.refusal(state.role, state.phase, state.incarnation, expected)
        if refused is not None:
            raise refused
        budget_s = self._engine.request_timeout_s
        if expected.remaining_ms is not None:
            budget_s = expected.remaining_ms / 1000
        try:
            async with asyncio.timeout(budget_s) as budget:
                raw = await read_body(self._scope, self._receive, self._engine.max_body_bytes)
                await while_connected(self._receive, self._answer, self._generate(raw, expected, budget_s))
        except TimeoutError:
            if not budget.expired():
                raise
            message = f"the request's budget of {budget_s:g} s is used up in this {state.role} engine"
            raise ApiError("deadline_exceeded", message) from None

    async def _generate(self, raw: bytes, expected: Expectation, budget_s: float) -> None:
        deadline = self._began + budget_s
        body = decode_body(raw)
        job = await generation.prepare(self._engine, self._api, body, expected, self._request_id, deadline)
        self._facts |= {
            "room": job.room,
            "stream": job.request.stream,
            "prompt_tokens": len(job.start.prompt),
        }
        with self._engine.ranks.open(job.start, job.rank) as reply, generation.recording(self._engine, job):
            try:
                await self._write(job, reply)
            finally:
                self._facts["completion_tokens"] = job.transcript.usage.completion_tokens

    async def _write(self, job: Job, reply: Reply) -> None:
        role = self._engine.state.role
        if role == "prefill":
            await generation.hand_off(reply, self._answer, self._request_id, job.start.room, self._note_first)
        elif job.request.stream:
            headers = generation.KV_RECEIVED if role == "decode" else {}
            await generation.stream(job, reply, self._answer, headers, self._note_first)
        else:
            early = role == "decode"
            await generation.whole(job, reply, self._answer, early_head=early, first=self._note_first)

    def _note_first(self) -> None:
        seconds = self._engine.clock.now() - self._began
        self._facts["first_s"] = round(seconds, 4)
        self._engine.metrics.first_token_s.labels(self._api).observe(seconds)

    def _record(self, outcome: str) -> None:
        self._engine.metrics.requests.labels(self._api, outcome).inc()
        log.info(
            "request",
            endpoint=self._api,
            outcome=outcome,
            status=self._answer.status,
            duration_s=round(self._engine.clock.now() - self._began, 4),
            **self._facts,
        )
