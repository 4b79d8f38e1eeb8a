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
from pdcore.engine.engine import Engine
from pdcore.engine.jobs import Job, prepare
from pdcore.engine.legs import Expectation
from pdcore.engine.replies import Replies
from pdcore.engine.requests import Api, decode_body
from pdcore.engine.resumption import TOKEN_IDS
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
        job = await prepare(self._engine, self._api, body, expected, self._request_id, deadline)
        self._facts |= {"room": job.rooms[0], "stream": job.request.stream, "answers": len(job.items)}
        with generation.opened(self._engine, job) as replies:
            try:
                await self._write(job, replies)
            finally:
                usage = job.usage
                self._facts |= {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                }

    async def _write(self, job: Job, replies: Replies) -> None:
        engine, answer, first = self._engine, self._answer, self._note_first
        role = engine.state.role
        if role == "prefill":
            await generation.hand_off(job, replies, answer, engine.load_header, self._request_id, first)
        elif job.request.stream:
            with_ids = TOKEN_IDS in self._headers and len(job.items) == 1
            await generation.stream(job, replies, answer, self._stream_headers, first, with_ids=with_ids)
        else:
            early = role == "decode"
            await generation.whole(job, replies, answer, engine.load_header, first, early_head=early)

    def _stream_headers(self, complete: bool) -> dict[str, str]:
        """``complete``: the KV of every item is here, as far as it was to come."""
        received = generation.KV_RECEIVED if complete and self._engine.state.role == "decode" else {}
        return {**self._engine.load_header(), **received}

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
