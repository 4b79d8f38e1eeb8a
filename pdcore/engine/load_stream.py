"""Load samples for as long as somebody listens: an event with a whole sample every second, or as often as asked.

``?every_ms=`` is from 100 to 10,000. A sample comes also when nothing has changed, so that a listener can tell an idle
instance from one that is silent. The stream ends when the instance begins to end.
"""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from pdcore.engine import legs, openai
from pdcore.engine.answer import Answer, ClientGone, headers_of, while_connected
from pdcore.engine.engine import Engine
from pdcore.errors import ApiError

EVERY_MS: Final = 1000
SHORTEST_MS: Final = 100
LONGEST_MS: Final = 10_000
MOST_LISTENERS: Final = 256


class LoadStream:
    """An ASGI application. Mutable: ``_listeners``, how many there are."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = legs.public_request_id(headers_of(scope)) or f"req-{secrets.token_hex(12)}"
        answer = Answer(send, request_id, write_idle_s=self._engine.write_idle_s)
        self._listeners += 1
        try:
            if self._listeners > MOST_LISTENERS:
                raise ApiError("rate_limited", f"{MOST_LISTENERS} others listen already", retry_after_s=10)
            every_s = _every_ms(scope) / 1000
            await while_connected(receive, answer, self._tell(answer, every_s))
        except ClientGone:
            return
        except ApiError as wrong:
            await answer.fail(wrong)
        finally:
            self._listeners -= 1

    async def _tell(self, answer: Answer, every_s: float) -> None:
        await answer.begin_stream({})
        while not self._engine.state.ending:
            await answer.stream(openai.event(self._engine.load_sample()))
            await self._engine.clock.sleep(every_s)
        await answer.finish_stream(openai.event(self._engine.load_sample()))


def _every_ms(scope: Scope) -> int:
    given = parse_qs(scope["query_string"].decode("latin-1")).get("every_ms", [str(EVERY_MS)])[-1]
    if given.isascii() and given.isdigit() and SHORTEST_MS <= int(given[:9]) <= LONGEST_MS:
        return int(given)
    message = f"every_ms must be an integer from {SHORTEST_MS} to {LONGEST_MS}, got {given[:40]!r}"
    raise ApiError("invalid_request", message, param="every_ms")
