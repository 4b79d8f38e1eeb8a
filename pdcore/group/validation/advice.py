"""Accelerators that must not be mixed, and what is allowed but probably not meant. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding, listed
from pdcore.group.modes.versions import is_provably_below
from pdcore.group.spec import OVERRIDES
from pdcore.group.validation.subject import Subject, path_of
from pdcore.topology.records import Json


def findings(subject: Subject) -> Iterator[Finding]:
    """Mixed accelerators are refused, everything else is advice."""
    for role in subject.engines:
        yield from _mixed(role)
        yield from _version(subject, role)
    if subject.pair is not None:
        yield from _may_not_help(*subject.pair)


def _mixed(role: EffectiveRole) -> Iterator[Finding]:
    """A role's members are interchangeable: one set of flags, one size of memory."""
    pinned = () if role.gpu_selector is None else role.gpu_selector.gpu_ids or ()
    types = {
        "gpu_type_selector": sorted({one.lower() for one in role.gpu_type_selector or ()}),
        "gpu_selector": sorted({one.split(":")[1].lower() for one in pinned}),
    }
    for field, found in types.items():
        if len(found) > 1:
            yield Finding(
                code="mixed_accelerators",
                path=path_of(role, field),
                message=f"members of {role.name} would run on {' and '.join(found)}",
                remedy="name one type per role; prefill and decode may have different ones",
                values={"role": role.name, "types": listed(found)},
            )


def _version(subject: Subject, role: EffectiveRole) -> Iterator[Finding]:
    versions = subject.mode.engine_versions
    if role.image_name is not None or not is_provably_below(role.backend_version, versions):
        return
    yield Finding(
        code="engine_version_below_recipe_floor",
        path=path_of(role, "backend_version"),
        message=f"mode {subject.mode.name} is made for {role.backend} {versions}, {role.name} has {role.backend_version}",
        remedy="use a newer engine, or make sure that yours has what the mode needs",
        values={"role": role.name, "given": role.backend_version, "range": versions},
        severity="advisory",
    )


def _may_not_help(prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Finding]:
    devices = _devices(prefill) | _devices(decode)
    if len(devices) == 1 and _devices(prefill) and _devices(decode):
        (only,) = devices
        yield _advice(
            "roles",
            f"prefill and decode share one accelerator ({only}), so neither gets anything for the other's transfers",
            {"devices": listed(devices)},
        )
    alike = all(getattr(prefill, name) == getattr(decode, name) for name in OVERRIDES)
    if alike and prefill.replicas == decode.replicas:
        yield _advice(
            "roles",
            "prefill and decode have the same parameters and as many members, so nothing is gained by having both",
            {"prefill": prefill.replicas, "decode": decode.replicas},
        )


def _advice(path: str, message: str, values: dict[str, Json]) -> Finding:
    return Finding(
        code="pd_may_not_help",
        path=path,
        message=message,
        remedy="measure it beside as many instances that do both phases",
        values=values,
        severity="advisory",
    )


def _devices(role: EffectiveRole) -> frozenset[str]:
    return frozenset((role.gpu_selector.gpu_ids or ()) if role.gpu_selector is not None else ())
