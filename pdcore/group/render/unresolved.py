"""What stands against starting a rendered member: placeholders that are left, each with its cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pdcore.group.modes.placeholders import cause_of, names_in
from pdcore.group.render.rendered import PortUse, Problem, RenderedFile, Word


def problems_of(
    argv: Sequence[Word], env: Mapping[str, Word], files: Sequence[RenderedFile], ports: Sequence[PortUse]
) -> tuple[Problem, ...]:
    """Every name that nobody could say, once, with where it first stands; and bands of unknown width."""
    places: dict[str, str] = {}
    for where, text in _texts(argv, env, files):
        for name in names_in(text):
            places.setdefault(name, where)
    left = (
        Problem(f"{where}: {{{{{name}}}}} is not resolved: {cause_of(name)}", name)
        for name, where in places.items()
    )
    unknown = (
        Problem(f"ports: nobody can tell how many {one.name} needs: {cause_of('roles')}")
        for one in ports
        if one.count is None
    )
    return (*left, *unknown)


def _texts(
    argv: Sequence[Word], env: Mapping[str, Word], files: Sequence[RenderedFile]
) -> Iterator[tuple[str, str]]:
    yield from (("args", word.text) for word in argv)
    yield from ((f"env {name}", word.text) for name, word in env.items())
    for one in files:
        yield "files", one.path
        yield f"file {one.path}", one.content or ""
