"""Asking every router of a view whether it has a revision, all at once, and what came back as rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import httpx
from rich import box
from rich.markup import escape
from rich.table import Table

from pdcore.topology.records import RouterRecord
from pdcore.topology.topology import Topology

CONNECT_S: Final = 2.0
GRACE_S: Final = 2.0  # for an answer that waited as long as it was told to
AT_ONCE: Final = 64
MAX_ANSWER_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRow:
    """What one router said. ``problem`` is None iff it has the revision."""

    router_id: str
    admin_url: str
    revision: int | None = None
    view_age_seconds: float | None = None
    problem: str | None = None


async def ask_routers(view: Topology, revision: int, timeout_s: float) -> tuple[RouterRow, ...]:
    """One row per router of ``view``, in order of their ids; takes little more than ``timeout_s``."""
    limit = asyncio.Semaphore(AT_ONCE)
    timeout = httpx.Timeout(timeout_s + GRACE_S, connect=CONNECT_S)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client:

        async def ask(router_id: str, router: RouterRecord) -> RouterRow:
            async with limit:
                url = f"{router.admin_url.rstrip('/')}/pdcore/revision"
                params: dict[str, str | int | float] = {"at_least": revision, "timeout_s": timeout_s}
                try:
                    async with asyncio.timeout(timeout_s + CONNECT_S + GRACE_S):
                        status, body = await _fetch(client, url, params)
                except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                    problem = f"not reachable: {str(error) or type(error).__name__}"
                    return RouterRow(router_id=router_id, admin_url=router.admin_url, problem=problem)
            return row(router_id, router.admin_url, status, body, revision=revision, store_id=view.store_id)

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(name, one)) for name, one in sorted(view.routers.items())]
        return tuple(task.result() for task in asked)


async def _fetch(
    client: httpx.AsyncClient, url: str, params: dict[str, str | int | float]
) -> tuple[int, bytes]:
    async with client.stream("GET", url, params=params) as answer:
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                break
        return answer.status_code, body


def row(
    router_id: str, admin_url: str, status: int, body: bytes, *, revision: int, store_id: str | None
) -> RouterRow:
    """The row of a router that answered ``status`` and ``body``."""

    def with_problem(problem: str) -> RouterRow:
        return RouterRow(router_id=router_id, admin_url=admin_url, problem=problem)

    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return with_problem(f"answered {status} with something else than a JSON object")
    if status != httpx.codes.OK:
        error = said.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        return with_problem(
            f"lags: {message}" if status == httpx.codes.GATEWAY_TIMEOUT else f"answered {status}: {message}"
        )
    known, age = said.get("revision"), said.get("view_age_seconds")
    if type(known) is not int or not isinstance(age, float | int | None):
        return with_problem("answered without a revision")
    problem = None
    if said.get("store_id") != store_id:
        problem = f"follows another store ({str(said.get('store_id'))[:64]})"
    elif known < revision:
        problem = f"lags: it is at revision {known}"
    return RouterRow(
        router_id=router_id, admin_url=admin_url, revision=known, view_age_seconds=age, problem=problem
    )


def table(rows: Sequence[RouterRow], *, revision: int) -> Table:
    """One line per router."""
    missing = sum(one.problem is not None for one in rows)
    title = f"revision {revision}: {len(rows) - missing} of {len(rows)} routers have it"
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("router", "admin url", "revision", "view age", "has it"):
        shown.add_column(column, justify="right" if column in ("revision", "view age") else "left")
    for one in rows:
        age = "" if one.view_age_seconds is None else f"{one.view_age_seconds:.1f} s"
        known = "" if one.revision is None else str(one.revision)
        verdict = "yes" if one.problem is None else f"no: {one.problem}"
        shown.add_row(*(escape(cell) for cell in (one.router_id, one.admin_url, known, age, verdict)))
    return shown


def document(rows: Sequence[RouterRow], *, revision: int) -> dict[str, object]:
    """The same for programs."""
    return {
        "revision": revision,
        "reached": bool(rows) and all(one.problem is None for one in rows),
        "routers": [asdict(one) for one in rows],
    }
