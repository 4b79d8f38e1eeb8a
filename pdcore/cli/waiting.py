"""Whether every router of a view has a revision, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import httpx
from rich import box
from rich.markup import escape
from rich.table import Table

from pdcore.cli.pass_key import NO_KEY, PassKey
from pdcore.cli.routers import CONNECT_S, Said, Unreachable, ask_routers
from pdcore.topology.topology import Topology

GRACE_S: Final = 2.0  # for an answer that waited as long as it was told to


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRow:
    """What one router said. ``problem`` is None iff it has the revision."""

    router_id: str
    admin_url: str
    revision: int | None = None
    view_age_seconds: float | None = None
    problem: str | None = None


async def wait_everywhere(
    view: Topology, revision: int, timeout_s: float, key: PassKey = NO_KEY
) -> tuple[RouterRow, ...]:
    """One row per router of ``view``, in order of their ids; takes little more than ``timeout_s``."""
    params: dict[str, str | int | float] = {"at_least": revision, "timeout_s": timeout_s}
    patience_s = timeout_s + CONNECT_S + GRACE_S
    answers = await ask_routers(view, "/pdcore/revision", params, timeout_s=patience_s, key=key)
    return tuple(
        row(router_id, view.routers[router_id].admin_url, answer, revision=revision, store_id=view.store_id)
        for router_id, answer in answers.items()
    )


def row(
    router_id: str, admin_url: str, answer: Said | Unreachable, *, revision: int, store_id: str | None
) -> RouterRow:
    """The row of a router that said ``answer``."""

    def with_problem(problem: str) -> RouterRow:
        return RouterRow(router_id=router_id, admin_url=admin_url, problem=problem)

    if isinstance(answer, Unreachable):
        return with_problem(f"not reachable: {answer.why}")
    said, status = answer.document, answer.status
    if said is None:
        return with_problem(f"answered {status} with something else than a JSON object")
    if status != httpx.codes.OK:
        error = said.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        late = status == httpx.codes.GATEWAY_TIMEOUT
        return with_problem(f"lags: {message}" if late else f"answered {status}: {message}")
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
