"""Only a POST to one of its own paths is answered by a route itself."""

from __future__ import annotations

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from pdcore.router.front import Front

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("scope", "who"),
    [
        ({"type": "http", "method": "POST", "path": "/often"}, "often"),
        ({"type": "http", "method": "GET", "path": "/often"}, "rest"),
        ({"type": "http", "method": "POST", "path": "/often/"}, "rest"),
        ({"type": "http", "method": "POST", "path": "/other"}, "rest"),
        ({"type": "lifespan"}, "rest"),
    ],
)
async def test_whose_request_it_is(scope: Scope, who: str) -> None:
    asked: list[str] = []

    def named(name: str) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(name)

        return app

    async def receive() -> Scope:
        raise AssertionError("nobody reads")

    async def send(message: Scope) -> None:
        raise AssertionError("nobody answers")

    await Front({"/often": named("often")}, named("rest"))(scope, receive, send)
    assert asked == [who]
