"""The router's ASGI application: routes, and errors in the public form. Resources belong to the caller."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pdcore.errors import ApiError, ErrorCode
from pdcore.registry.ring import Ring
from pdcore.router.api import PATHS
from pdcore.router.endpoint import GenerationEndpoint
from pdcore.router.headers import new_request_id
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.past import PastEndpoint
from pdcore.router.revision import RevisionEndpoint
from pdcore.router.serving import Serving
from pdcore.router.views import Views
from pdcore.telemetry import logger

_log = logger(__name__)


def build_app(*, router_id: str, serving: Serving, lifecycle: Lifecycle, ring: Ring) -> Starlette:
    """The application over what ``serving`` holds."""
    views = Views(
        router_id=router_id,
        follower=serving.follower,
        fleet=serving.fleet,
        ledger=serving.ledger,
        rules=serving.rules,
        lifecycle=lifecycle,
        metrics=serving.ground.metrics,
    )
    generation = [
        Route(path, GenerationEndpoint(endpoint, serving, lifecycle), methods=["POST"])
        for endpoint, path in PATHS.items()
    ]
    return Starlette(
        routes=[
            *generation,
            Route("/v1/models", views.models),
            Route("/health", views.health),
            Route("/ready", views.ready),
            Route("/metrics", views.metrics),
            Route("/pdcore/topology", views.topology),
            Route("/pdcore/revision", RevisionEndpoint(serving.follower).get),
            Route("/pdcore/history", PastEndpoint(ring).get),
        ],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _bug},
    )


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes: dict[int, ErrorCode] = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(error.status_code, "invalid_request")
    return _answer(ApiError(code, f"{request.method} {request.url.path[:128]}: {error.detail}"))


async def _bug(request: Request, error: Exception) -> Response:
    _log.error("request failed", path=request.url.path, exc_info=error)
    return _answer(ApiError("internal", "the router failed; its log says how"))


def _answer(error: ApiError) -> Response:
    request_id = new_request_id()
    headers = {"x-request-id": request_id, **error.headers()}
    return JSONResponse(error.body(request_id), status_code=error.status, headers=headers)
