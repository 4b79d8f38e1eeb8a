"""Every role of a group as it would be started, before any member has a place; for people and programs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from pdcore.group.effective import EffectiveRole, effective_roles
from pdcore.group.modes.mode import Catalogue
from pdcore.group.render.engine import render_engine
from pdcore.group.render.facts import GroupFacts, Place
from pdcore.group.render.rendered import PortUse, Rendered, Word
from pdcore.group.render.router import membership_of, render_router
from pdcore.group.spec import GroupSpec
from pdcore.topology.records import Json

NO_PLACE: Final = Place()
PYTHON: Final = "python"
HIDDEN: Final = "(hidden)"
_SECRET: Final = frozenset("token secret password passwd credential credentials key".split())


def shown_roles(catalogue: Catalogue, spec: GroupSpec, choices: Mapping[str, str]) -> dict[str, Rendered]:
    """One member of each role of ``spec``; ``choices`` are those that its generation keeps."""
    mode = catalogue.mode(spec.mode)
    roles = effective_roles(spec, mode)
    group = GroupFacts(
        group=spec.name,
        generation=None,
        model=spec.model,
        model_name=spec.served_name,
        policy=spec.kv_load_failure_policy,
        roles=roles,
        python=PYTHON,
        ascend_connector=choices.get("ascend_connector"),
    )
    return {
        name: render_router(catalogue, mode, group, role, NO_PLACE)
        if role.is_router
        else render_engine(catalogue, mode, group, role, NO_PLACE)
        for name, role in _in_order(spec, roles)
    }


def document(catalogue: Catalogue, spec: GroupSpec, roles: Mapping[str, Rendered]) -> dict[str, Json]:
    """What programs read. Secrets among the variables are hidden."""
    mode = catalogue.mode(spec.mode)
    effective = effective_roles(spec, mode)
    shown: list[Json] = []
    for name, one in roles.items():
        role = effective[name]
        made = _hidden(one).document()
        made["replicas"] = role.replicas
        made["backend"] = role.backend
        if role.is_router:
            made["membership"] = membership_of(mode, role)
        shown.append(made)
    return {"group": spec.name, "mode": spec.mode, "roles": shown}


def lines(catalogue: Catalogue, spec: GroupSpec, roles: Mapping[str, Rendered]) -> Iterator[str]:
    """What people read: words in order, those of one source on a line."""
    mode = catalogue.mode(spec.mode)
    effective = effective_roles(spec, mode)
    yield f"group {spec.name}, mode {mode.name}: {mode.title}"
    for name, one in roles.items():
        role = effective[name]
        members = f", members {membership_of(mode, role)}" if role.is_router else ""
        yield f"{name} x{role.replicas}{members}"
        yield from (f"  {line}" for line in _member_lines(_hidden(one)))


def is_secret(name: str) -> bool:
    """Whether what a variable or flag of that name says is not for eyes."""
    return not _SECRET.isdisjoint(name.lower().replace("-", "_").split("_"))


def _hidden(one: Rendered) -> Rendered:
    env = {
        name: Word(HIDDEN, word.source) if is_secret(name) and word.text else word
        for name, word in one.env.items()
    }
    return replace(one, argv=tuple(_hidden_words(one.argv)), env=env)


def _hidden_words(argv: Sequence[Word]) -> Iterator[Word]:
    hides = False
    for word in argv:
        flag, equals, _ = word.text.partition("=")
        is_flag = flag.startswith("--")
        if is_flag and is_secret(flag) and equals:
            yield Word(f"{flag}={HIDDEN}", word.source)
        else:
            yield Word(HIDDEN, word.source) if hides and not is_flag else word
        hides = is_flag and is_secret(flag) and not equals


def _member_lines(one: Rendered) -> Iterator[str]:
    for source, units in groupby(_units(one.argv), key=lambda unit: unit[-1].source):
        yield f"{source:9}  {' '.join(_quoted(word.text) for unit in units for word in unit)}"
    for name, word in one.env.items():
        yield f"{word.source:9}  env {name}={_quoted(word.text)}"
    for file in one.files:
        whence = "written before the start" if file.content is not None else "the machine's own, read only"
        yield f"{file.source:9}  file {file.path} ({whence}: {file.why})"
    for port in one.ports:
        yield f"{port.source:9}  port {port.name} {_count(port)}"
    for note in one.notes:
        yield f"note: {note.message} [{note.code}]"
    for problem in one.problems:
        if not problem.is_settled_later:
            yield f"problem: {problem}"


def _units(argv: Sequence[Word]) -> Iterator[list[Word]]:
    """A flag with its values, which say where both come from; every other word alone."""
    unit: list[Word] = []
    for word in argv:
        is_flag = word.text.startswith("-")
        if unit and (is_flag or not unit[0].text.startswith("-") or "=" in unit[0].text):
            yield unit
            unit = []
        unit.append(word)
    if unit:
        yield unit


def _in_order(spec: GroupSpec, roles: Mapping[str, EffectiveRole]) -> Iterator[tuple[str, EffectiveRole]]:
    """As the spec has them."""
    for name in dict.fromkeys(role.name for role in spec.roles):
        yield name, roles[name]


def _count(port: PortUse) -> str:
    if port.count is None:
        return "as many as the member has accelerators"
    return "x1" if port.count == 1 else f"x{port.count} in a row"


def _quoted(text: str) -> str:
    """As a shell takes it, but for placeholders, which nobody pastes."""
    return text if "{{" in text and " " not in text else shlex.quote(text)
