"""The HTTP face of a leader: its routes, and the plain answers about itself.

``/health`` says who is here, ``/ready`` whether requests are taken, ``/metrics`` what happens, ``/load`` how busy it is,
once or as long as one listens; generation is :mod:`pdcore.engine.exchange`. Every error has the same body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pdcore.engine import legs, metrics, openai
from pdcore.engine.answer import JSON_TYPE
from pdcore.engine.engine import Engine
from pdcore.engine.exchange import GenerationEndpoint
from pdcore.engine.load_stream import LoadStream
from pdcore.engine.requests import Api
from pdcore.engine.text_endpoint import TextEndpoint
from pdcore.engine.tokenizing import detokenize, tokenize
from pdcore.errors import ApiError, ErrorCode
from pdcore.registry import leaders

GENERATION: Final[Mapping[str, Api]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/generate": "generate",
}
_HTTP_ERRORS: Final[Mapping[int, ErrorCode]] = {404: "not_found", 405: "method_not_allowed"}


def create_app(engine: Engine) -> Starlette:
    """The application of one leader."""
    about = _About(engine)
    routes = [
        Route("/health", about.health, methods=["GET"]),
        Route("/ready", about.ready, methods=["GET"]),
        Route("/drain", about.drain, methods=["POST"]),
        Route("/metrics", about.metrics, methods=["GET"]),
        Route("/load", about.load, methods=["GET"]),
        Route("/load/stream", LoadStream(engine), methods=["GET"]),
        Route("/leader", about.leader, methods=["GET"]),
        Route("/v1/models", about.models, methods=["GET"]),
        *(Route(path, GenerationEndpoint(api, engine), methods=["POST"]) for path, api in GENERATION.items()),
        Route("/tokenize", TextEndpoint(engine, tokenize), methods=["POST"]),
        Route("/detokenize", TextEndpoint(engine, detokenize), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


class _About:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._created = int(engine.clock.wall())

    async def health(self, request: Request) -> Response:
        status, document = self._engine.state.health(self._engine.trouble())
        return _json(document, status)

    async def ready(self, request: Request) -> Response:
        status, document = self._engine.state.readiness()
        return _json(document, status)

    async def drain(self, request: Request) -> Response:
        """Stop taking requests; what is in flight goes on, and this process too."""
        self._engine.drain()
        state = self._engine.state
        return _json({"status": "draining", "in_flight": state.in_flight}, 202)

    async def metrics(self, request: Request) -> Response:
        return Response(self._engine.metrics.text(), media_type=metrics.CONTENT_TYPE)

    async def load(self, request: Request) -> Response:
        """One sample of how busy it is and whom it does not reach, for routers; it ages from the moment it is read."""
        return _json(self._engine.load_sample())

    async def leader(self, request: Request) -> Response:
        """For the instance's other machines, where the store does not tell them."""
        word = self._engine.state.word
        assert word is not None, "said before HTTP is answered"
        return Response(leaders.encode(word), media_type=JSON_TYPE)

    async def models(self, request: Request) -> Response:
        state = self._engine.state
        return _json(openai.models(state.models, self._created, state.context_length))


def _json(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(openai.to_json(document), status, headers=headers, media_type=JSON_TYPE)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_ERRORS.get(error.status_code, "invalid_request")
    wrong = ApiError(code, f"{request.method} {request.url.path[:200]}: {error.detail}")
    request_id = legs.public_request_id({legs.REQUEST_ID: request.headers.get(legs.REQUEST_ID, "")})
    return _json(wrong.body(request_id), error.status_code, error.headers)
