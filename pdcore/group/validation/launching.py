"""Whether a member could be started once it has a place: each role is rendered at a made-up one. Pure.

What is left unresolved there would be left at any place, and the launch would refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pdcore.config.spelling import closest
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.flags import Flags
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.mode import NATIVE, EngineRole
from pdcore.group.modes.placeholders import Fact, cause_of, names_in
from pdcore.group.render.engine import NO_COMMAND, render_engine
from pdcore.group.render.facts import GroupFacts, Peer, Place, PortBand, facts_of, sizes_of
from pdcore.group.render.needs import HTTP, needs_of
from pdcore.group.render.rendered import Problem, Rendered
from pdcore.group.render.router import render_router
from pdcore.group.spec import ROLES
from pdcore.group.validation.subject import Subject, path_of

_SOMEWHERE: Final = "127.0.0.1"
_PORT: Final = 40000
_SAID_ELSEWHERE: Final = ("router.protocol", "cache.")
"""How names begin whose absence is a finding of another rule."""
_PROGRAMS: Final[Mapping[str, str]] = {
    "prefill": "pdcore.engine",
    "decode": "pdcore.engine",
    "router": "pdcore.router",
}


def findings(subject: Subject) -> Iterator[Finding]:
    """What the launch of a member would refuse, role by role; what several of them lack is said once."""
    said = set[tuple[str, str]]()
    for role in subject.roles.values():
        if role.name not in ROLES:
            continue
        yield from _foreign_command(subject, role)
        yield from _stray_words(subject, role)
        for problem in _rehearsed(subject, role).problems:
            for finding in _unstartable(subject, role, problem):
                if (finding.path, finding.message) not in said:
                    said.add((finding.path, finding.message))
                    yield finding


def _foreign_command(subject: Subject, role: EffectiveRole) -> Iterator[Finding]:
    """The flags of mode pdcore are nothing to another program, and whoever does not register never counts as running."""
    program = _PROGRAMS.get(role.name)
    if subject.mode.name != NATIVE or program is None or role.run_command is None:
        return
    if program not in role.run_command:
        yield Finding(
            code="command_not_native",
            path=path_of(role, "run_command"),
            message=f"mode {NATIVE} starts {program} with the flags it needs, and this command starts something else",
            remedy=f"remove run_command, let it end in python -m {program}, or choose mode custom",
            values={"role": role.name, "given": role.run_command},
        )


def _stray_words(subject: Subject, role: EffectiveRole) -> Iterator[Finding]:
    """Words that are no flag and belong to none, where the program takes none; one of a person's own may."""
    managed = role.run_command is None and (not role.is_router or subject.router is not None)
    known = role.is_router or role.backend in ("pdcore", "vllm", "sglang")
    if not managed or not known:
        return
    several = not role.is_router and role.backend != "pdcore"
    for word in dict.fromkeys(Flags.strays(role.backend_parameters, several=several)):
        yield Finding(
            code="parameter_stray",
            path=path_of(role, "backend_parameters"),
            message=f"{word!r} is no flag and belongs to none",
            remedy="write --flag=value, or remove it",
            values={"role": role.name, "given": word},
        )


def _rehearsed(subject: Subject, role: EffectiveRole) -> Rendered:
    """One member of ``role`` at a place that has everything."""
    modes, mode, group = catalogue(), subject.mode, _group(subject)
    place = _place(subject, role)
    if not role.is_router:
        return render_engine(modes, mode, group, role, place)
    return render_router(modes, mode, group, role, place, None if mode.name == NATIVE else _peers(subject))


def _group(subject: Subject) -> GroupFacts:
    spec = subject.spec
    return GroupFacts(
        group=spec.name,
        generation=1,
        model=spec.model,
        model_name=spec.served_name,
        policy=spec.kv_load_failure_policy,
        roles=subject.roles,
        store="etcd://127.0.0.1:2379",
        cluster="default",
        ascend_connector="either",
    )


def _place(subject: Subject, role: EffectiveRole) -> Place:
    """A machine with one accelerator, where nothing is known of the role's own."""
    cards = 1 if role.is_router else sizes_of(role, None).cards or 1
    needs = needs_of(catalogue(), subject.mode, role, cards)
    return Place(
        instance_id=f"{subject.spec.name}-1-{role.name}-1",
        worker_ip=_SOMEWHERE,
        net_device="lo",
        port=_PORT if any(need.name == HTTP for need in needs) else None,
        bands={need.name: PortBand(base=_PORT, count=need.count or 1) for need in needs if need.name != HTTP},
        run_dir=None if subject.mode.name in (NATIVE, "custom") else "/run",
        accelerators=cards,
    )


def _peers(subject: Subject) -> list[Peer]:
    every: list[EngineRole] = ["prefill", "decode"]
    return [
        Peer(
            role=name,
            ip=_SOMEWHERE,
            port=_PORT,
            bands={band.name: PortBand(base=_PORT) for band in subject.mode.bands_of(name)},
        )
        for name in every
    ]


def _unstartable(subject: Subject, role: EffectiveRole, problem: Problem) -> Iterator[Finding]:
    if problem == NO_COMMAND:
        if role.run_command is not None:  # else another rule says so
            yield Finding(
                code="command_missing",
                path=path_of(role, "run_command"),
                message="the command has no words",
                remedy="write the program and its arguments",
                values={"role": role.name, "given": role.run_command},
            )
    elif problem.name and not problem.name.startswith(_SAID_ELSEWHERE):
        known = facts_of(catalogue(), subject.mode, _group(subject), role, _place(subject, role))
        yield Finding(
            code="placeholder_unresolved",
            path=_where(_told_by(subject, problem.name) or role, problem.name),
            message=f"{{{{{problem.name}}}}} stands for nothing: {cause_of(problem.name)}"
            f"{closest(problem.name, known)}",
            remedy=f"write the value itself, or one of {_listed(known)}",
            values={"placeholder": problem.name},
        )


def _told_by(subject: Subject, name: str) -> EffectiveRole | None:
    """The role whose flags could have said what ``name`` is."""
    head, _, rest = name.partition(".")
    return subject.roles.get(rest.partition(".")[0]) if head == "roles" else None


def _where(role: EffectiveRole, name: str) -> str:
    """Where a person wrote the placeholder; the flags, which could have said it, where nobody did."""
    for variable, text in (role.env or {}).items():
        if name in names_in(text):
            return f"{path_of(role, 'env')}.{variable}"
    if role.run_command is not None and name in names_in(role.run_command):
        return path_of(role, "run_command")
    return path_of(role, "backend_parameters")


def _listed(known: Mapping[str, Fact]) -> str:
    return ", ".join(f"{{{{{name}}}}}" for name in known if not name.startswith("roles."))
