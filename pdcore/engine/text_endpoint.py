"""An endpoint that answers from a body at once: no rank, no room, nothing to take back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from starlette.types import Receive, Scope, Send

from pdcore import telemetry
from pdcore.engine import legs
from pdcore.engine.answer import Answer, ClientGone, check_headers, headers_of, read_body
from pdcore.engine.engine import Engine
from pdcore.engine.fields import Body
from pdcore.engine.jobs import LONG_TEXT
from pdcore.engine.requests import decode_body
from pdcore.errors import ApiError

Work = Callable[[Engine, Body], object]

BODY_S: Final = 30.0

log = telemetry.logger(__name__)


class TextEndpoint:
    """An ASGI application; ``work`` turns a body into the answer's document, or raises ApiError."""

    def __init__(self, engine: Engine, work: Work) -> None:
        self._engine = engine
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_id = legs.public_request_id(headers) or f"req-{secrets.token_hex(12)}"
        answer = Answer(send, request_id, write_idle_s=self._engine.write_idle_s)
        with telemetry.bound(request_id=request_id):
            try:
                await answer.json(await self._document(scope, receive))
            except ClientGone:
                return
            except ApiError as wrong:
                await answer.fail(wrong)
            except Exception as broken:
                log.exception("request broke", reason=repr(broken))
                await answer.fail(ApiError("internal", "the engine failed; its log says why"))

    async def _document(self, scope: Scope, receive: Receive) -> object:
        state = self._engine.state
        check_headers(scope)
        refused = legs.refusal(
            state.role, state.phase, state.incarnation, legs.parse_expectation(headers_of(scope))
        )
        if refused is not None:
            raise refused
        try:
            async with asyncio.timeout(BODY_S):
                raw = await read_body(scope, receive, self._engine.max_body_bytes)
        except TimeoutError:
            raise ApiError("deadline_exceeded", f"the body has not come within {BODY_S:g} s") from None
        body = decode_body(raw)
        if len(raw) > LONG_TEXT:
            return await asyncio.to_thread(self._work, self._engine, body)
        return self._work(self._engine, body)
