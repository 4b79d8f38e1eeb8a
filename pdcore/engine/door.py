"""Whom a leader listens to: everybody about its health, and for the rest whoever knows the token, if it has one.

Routers and the instance's other machines send it. What stays open tells no more than figures: probes, claims of an
instance id and Prometheus ask without knowing anybody's secret.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from pdcore.bearer import Token, credentials
from pdcore.config import EngineConfig
from pdcore.engine import legs
from pdcore.engine.answer import Answer, headers_of
from pdcore.errors import ApiError
from pdcore.watched_files import WatchedFiles

OPEN: Final = frozenset({"/health", "/ready", "/metrics"})
_SETTING: Final = "--engine-token-file / PDCORE_ENGINE_TOKEN_FILE"


class Door:
    """``app`` behind ``token``, which is read anew for every request."""

    def __init__(self, app: ASGIApp, token: Callable[[], Token]) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN:
            try:
                self._check(scope)
            except ApiError as refused:
                given = legs.public_request_id(headers_of(scope))
                await Answer(send, given or f"req-{secrets.token_hex(12)}").fail(refused)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        if not self._token().is_sent(credentials(scope["headers"])):
            raise ApiError("forbidden", "this is not the token that this engine asks for")


def token_file(config: EngineConfig) -> WatchedFiles[Token] | None:
    """The token that is asked for, read; None when none is. Raises ConfigError for a file that holds none."""
    path = config.engine_token_file
    if path is None:
        return None
    watched = WatchedFiles((path,), lambda: Token.read(path.read_text(encoding="utf-8")), _SETTING)
    watched.load()
    return watched
