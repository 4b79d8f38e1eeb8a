"""A prefill or decode member's command line, variables, files and ports. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pdcore.group.effective import EffectiveRole, Source
from pdcore.group.flags import argv_of
from pdcore.group.modes.mode import Catalogue, EngineRole, HostFile, Mode, RoleRecipe
from pdcore.group.modes.placeholders import Facts, in_text, names_in, substituted
from pdcore.group.render.connector import Cache, cache_of, descriptor_notes, descriptor_words
from pdcore.group.render.facts import GroupFacts, Place, declares_parallelism, facts_of, sizes_of, source_of
from pdcore.group.render.needs import HTTP, needs_of
from pdcore.group.render.rendered import Note, PortUse, Problem, Rendered, RenderedFile, Word
from pdcore.group.render.unresolved import problems_of
from pdcore.topology.records import Json

NO_RECIPE: Final = RoleRecipe()
NO_COMMAND: Final = Problem("it has no command: write run_command")


def render_engine(
    catalogue: Catalogue, mode: Mode, group: GroupFacts, role: EffectiveRole, place: Place
) -> Rendered:
    """One member of ``role`` at ``place``. What is not known stays a placeholder and is among the problems."""
    name: EngineRole = "prefill" if role.name == "prefill" else "decode"
    facts = facts_of(catalogue, mode, group, role, place)
    recipe = mode.roles.get(name, NO_RECIPE)
    cache = cache_of(mode, name, role, place.accelerators)
    known = {**facts, **cache.facts}
    argv = (
        *_command(catalogue, role, facts, place),
        *_filled(recipe.args, known),
        *descriptor_words(name, role, recipe, cache, facts),
        *_filled(cache.part.args, known),
        *_speculative(role),
        *_parameters(role, known),
    )
    env, env_notes = _environment(recipe, cache, role, known)
    files = tuple(_file(one, cache, known) for one in (*recipe.files, *cache.part.files))
    ports = ports_of(catalogue, mode, role, place)
    missing = () if argv and argv[0].text else (NO_COMMAND,)
    return Rendered(
        role=role.name,
        argv=argv,
        env=env,
        files=files,
        ports=ports,
        notes=(*descriptor_notes(role, recipe), *cache.notes, *env_notes, *_unused(role)),
        problems=(*missing, *problems_of(argv, env, files, ports)),
    )


def ports_of(catalogue: Catalogue, mode: Mode, role: EffectiveRole, place: Place) -> tuple[PortUse, ...]:
    """What the member takes from the range, and where it begins once that is known."""
    found = []
    for need in needs_of(catalogue, mode, role, place.accelerators):
        band = place.bands.get(need.name)
        base = place.port if need.name == HTTP else None if band is None else band.base
        found.append(PortUse(name=need.name, base=base, count=need.count))
    return tuple(found)


def command_words(command: str, source: Source, facts: Facts) -> tuple[Word, ...]:
    """The words of a command that a person wrote, each filled by itself, so that a value with blanks stays one."""
    try:
        split = shlex.split(command)
    except ValueError:
        split = command.split()
    return tuple(Word(in_text(word, facts), source) for word in split)


def environment_of(
    added: Iterable[tuple[str, Word]], role: EffectiveRole, facts: Facts
) -> tuple[dict[str, Word], tuple[Note, ...]]:
    """The variables that are ``added``, and the role's own over them; each that it replaces is noted."""
    env = dict(added)
    notes = []
    source = role.sources.get("env", "user")
    for name, value in (role.env or {}).items():
        text = in_text(value, facts)
        if name in env and env[name].text != text:
            notes.append(Note("env_overridden", f"{name}={text} of the spec replaces {env[name].text}"))
        env[name] = Word(text, source)
    return env, tuple(notes)


def _command(catalogue: Catalogue, role: EffectiveRole, facts: Facts, place: Place) -> tuple[Word, ...]:
    """What comes before the mode's own words; tensor parallelism where it is told by the member's cards alone."""
    if role.run_command is not None:
        return command_words(role.run_command, role.sources.get("run_command", "user"), facts)
    backend = catalogue.backends[role.backend or "custom"]
    return (*_filled(backend.command, facts), *_parallelism(backend.tp_flag, role, place))


def _parallelism(flag: str | None, role: EffectiveRole, place: Place) -> tuple[Word, ...]:
    sizes = sizes_of(role, place.accelerators)
    if flag is None or declares_parallelism(role) or sizes.tp in (None, 1):
        return ()
    return Word(flag, "derived"), Word(str(sizes.tp), "derived")


def _filled(texts: Iterable[str], facts: Facts) -> tuple[Word, ...]:
    return tuple(Word(in_text(text, facts), source_of(list(names_in(text)))) for text in texts)


def _parameters(role: EffectiveRole, facts: Facts) -> tuple[Word, ...]:
    source = role.sources.get("backend_parameters", "user")
    return tuple(Word(in_text(word, facts), source) for word in argv_of(role.backend_parameters or ()))


def _speculative(role: EffectiveRole) -> tuple[Word, ...]:
    """Speculative decoding: one JSON value for vLLM, a flag each for SGLang."""
    config = role.speculative_config
    if not config:
        return ()
    source = role.sources.get("speculative_config", "user")
    if role.backend == "vllm":
        value = json.dumps(dict(config), separators=(",", ":"), ensure_ascii=False)
        return Word("--speculative-config", source), Word(value, source)
    if role.backend == "sglang":
        return tuple(Word(text, source) for text in _flags(config))
    return ()


def _flags(config: Mapping[str, Json]) -> Iterator[str]:
    for name, value in config.items():
        yield f"--{name.lstrip('-').replace('_', '-')}"
        if value is not True:
            yield value if isinstance(value, str) else json.dumps(value)


def _unused(role: EffectiveRole) -> tuple[Note, ...]:
    if not role.speculative_config or role.backend in ("vllm", "sglang"):
        return ()
    return (Note("not_passed_on", f"speculative_config is nothing that {role.backend} takes"),)


def _environment(
    recipe: RoleRecipe, cache: Cache, role: EffectiveRole, facts: Facts
) -> tuple[dict[str, Word], tuple[Note, ...]]:
    added = {**recipe.env, **cache.part.env}
    filled = (
        (name, Word(in_text(value, facts), source_of(list(names_in(value))))) for name, value in added.items()
    )
    return environment_of(filled, role, facts)


def _file(one: HostFile, cache: Cache, facts: Facts) -> RenderedFile:
    content = None if one.content is None else json.dumps(substituted(one.content, facts), indent=2) + "\n"
    return RenderedFile(path=in_text(one.path, facts), content=content, why=one.why)
