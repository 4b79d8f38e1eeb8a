"""The first thing a request meets: routes that are asked all the time are found by one look, the rest by Starlette."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Front:
    """An ASGI application. ``often`` answers POSTs to its paths by itself, errors included; ``rest`` everything else."""

    def __init__(self, often: Mapping[str, ASGIApp], rest: ASGIApp) -> None:
        self._often = often
        self._rest = rest

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        app = self._rest
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._often.get(scope["path"], app)
        return app(scope, receive, send)
