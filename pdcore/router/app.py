"""The router's ASGI applications: routes, and errors in the public form. Resources belong to the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pdcore.errors import ApiError, ErrorCode
from pdcore.registry.ring import Ring
from pdcore.router.api import PATHS
from pdcore.router.doors import is_loopback
from pdcore.router.endpoint import GenerationEndpoint
from pdcore.router.fixed.workers import WorkersEndpoint
from pdcore.router.front import Front
from pdcore.router.headers import RawHeaders, new_request_id
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.past import PastEndpoint
from pdcore.router.revision import RevisionEndpoint
from pdcore.router.serving import Serving
from pdcore.router.views import Views
from pdcore.telemetry import logger

View = Callable[[Request], Awaitable[Response]]

_log = logger(__name__)


def build_app(*, router_id: str, serving: Serving, lifecycle: Lifecycle, ring: Ring) -> ASGIApp:
    """What clients meet, and operators too unless they have a port of their own."""
    views = _views(router_id, serving, lifecycle)
    endpoints = {path: GenerationEndpoint(endpoint, serving, lifecycle) for endpoint, path in PATHS.items()}
    generation = [Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
    models = Route("/v1/models", _guarded(views.models, serving, serving.access.client))
    operators = [] if serving.access.apart else operator_routes(serving, views, ring)
    return Front(endpoints, _application([*generation, models, *_vital(views), *operators]))


def build_operators_app(*, router_id: str, serving: Serving, lifecycle: Lifecycle, ring: Ring) -> Starlette:
    """What operators meet at their own port."""
    views = _views(router_id, serving, lifecycle)
    return _application([*_vital(views), *operator_routes(serving, views, ring)])


def operator_routes(serving: Serving, views: Views, ring: Ring) -> list[Route]:
    """The views of the fleet and of this router; everything here asks for the operators' token if there is one."""
    shown: dict[str, View] = {
        "/metrics": views.metrics,
        "/stats": views.stats,
        "/pdcore/topology": views.topology,
        "/pdcore/revision": RevisionEndpoint(serving.follower).get,
        "/pdcore/history": PastEndpoint(ring).get,
    }
    return [
        *(
            Route(path, _guarded(view, serving, serving.access.operator), methods=["GET"])
            for path, view in shown.items()
        ),
        *_worker_routes(serving),
    ]


def _worker_routes(serving: Serving) -> list[Route]:
    """The engines of a router without a store, to be seen and changed; a router with one has no such routes."""
    if serving.fixed is None:
        return []
    workers = WorkersEndpoint(serving.fixed, serving.fleet, serving.ledger)
    everybody = is_loopback(serving.config.host)

    def change(headers: RawHeaders) -> None:
        serving.access.operator(headers)
        if not (everybody or serving.access.knows_operators):
            why = "engines are added and removed at --admin-port, or with the token of --admin-token-file"
            raise ApiError("forbidden", why)

    seen = partial(_guarded, serving=serving, admit=serving.access.operator)
    changed = partial(_guarded, serving=serving, admit=change)
    one = "/workers/{worker_id:path}"
    return [
        Route("/workers", seen(workers.list), methods=["GET"]),
        Route("/workers", changed(workers.add), methods=["POST"]),
        Route(one, seen(workers.get), methods=["GET"]),
        Route(one, changed(workers.remove), methods=["DELETE"]),
    ]


def _views(router_id: str, serving: Serving, lifecycle: Lifecycle) -> Views:
    return Views(
        router_id=router_id,
        follower=serving.follower,
        fleet=serving.fleet,
        ledger=serving.ledger,
        rules=serving.rules,
        lifecycle=lifecycle,
        metrics=serving.ground.metrics,
    )


def _vital(views: Views) -> list[Route]:
    """What whoever watches over the process asks; open to everybody."""
    return [Route("/health", views.health), Route("/ready", views.ready)]


def _guarded(view: View, serving: Serving, admit: Callable[[RawHeaders], object]) -> View:
    """``view`` for those whom ``admit`` lets pass."""

    async def answer(request: Request) -> Response:
        try:
            admit(request.headers.raw)
        except ApiError as refused:
            serving.ground.metrics.refused(refused.code)
            raise
        return await view(request)

    return answer


def _application(routes: list[Route]) -> Starlette:
    return Starlette(
        routes=routes,
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
