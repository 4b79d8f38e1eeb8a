"""Engines at https addresses: asked and served by their certificates, and not used by a router that does not know them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pdcore.config.targets import Target, TargetRole
from pdcore.http_server import answering, listen, port_of
from tests.router.fleet import Fleet, running_fleet
from tests.support.certificates import Authority
from tests.support.eventually import eventually
from tests.support.fake_engines import COMPLETION, DONE, MARK, event

pytestmark = pytest.mark.integration

EVENTS = (event("Pa"), event("ris", "stop"), DONE)
SOON_S = 5.0


async def complete(request: Request) -> Response:
    if (await request.json()).get("stream"):

        async def events() -> AsyncIterator[bytes]:
            for one in EVENTS:
                yield one

        return StreamingResponse(events(), headers=MARK, media_type="text/event-stream")
    return JSONResponse(COMPLETION, headers=MARK)


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "incarnation": "i1"})


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "tiny"}]})


APP = Starlette(
    routes=[
        Route("/health", health),
        Route("/v1/models", models),
        Route("/v1/completions", complete, methods=["POST"]),
    ]
)


@asynccontextmanager
async def pair(authority: Authority) -> AsyncIterator[dict[TargetRole, Target]]:
    """A prefill and a decode engine that speak TLS only."""
    issued = authority.issue("engine")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(issued.cert, issued.key)
    roles: tuple[TargetRole, ...] = ("prefill", "decode")
    found: dict[TargetRole, Target] = {}
    async with AsyncExitStack() as stack:
        for role in roles:
            listener = stack.enter_context(listen("127.0.0.1", 0, "port"))
            await stack.enter_async_context(answering(APP, listener, tls))
            found[role] = Target(role=role, host="127.0.0.1", port=port_of(listener), tls=True)
        yield found


@asynccontextmanager
async def router(engines: dict[TargetRole, Target], ca: Path) -> AsyncIterator[Fleet]:
    async with running_fleet(
        prefill=(engines["prefill"],),
        decode=(engines["decode"],),
        engine_tls=ssl.create_default_context(cafile=ca),
    ) as fleet:
        yield fleet
        await fleet.settled()


async def test_a_pair_behind_https_is_asked_and_serves_whole_and_streamed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with pair(authority) as engines, router(engines, authority.ca) as fleet:
        await fleet.follower.wait_until(
            lambda view: sum(one.ready for one in view.instances.values()) == 2, SOON_S
        )
        assert (await fleet.post({"prompt": "hi", "model": "tiny"})).json() == COMPLETION
        streamed = await fleet.post({"prompt": "hi", "model": "tiny", "stream": True})
        assert streamed.content == b"".join(EVENTS)
        listed = (await fleet.client.get("/workers")).json()["workers"]
        assert [one["url"] for one in listed] == [engines[role].url for role in ("decode", "prefill")]
        assert all(one["url"].startswith("https://") and one["is_healthy"] for one in listed)


async def test_an_engine_whose_certificate_nobody_knows_is_not_used_and_the_list_says_why(
    tmp_path: Path,
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with pair(Authority(tmp_path)) as engines, router(engines, stranger.ca) as fleet:

        async def is_told() -> bool:
            listed = (await fleet.client.get("/workers")).json()["workers"]
            return all("CERTIFICATE_VERIFY_FAILED" in one["reason"] for one in listed)

        await eventually(is_told, SOON_S, "both are refused for their certificates")
        answer = await fleet.post({"prompt": "hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")
