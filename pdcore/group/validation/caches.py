"""Whether a KV cache beyond the accelerator's memory can be attached where the spec wants one. Pure.

Which cache goes with which mode and role is the table's business (:mod:`pdcore.group.modes.shared_cache`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcore.config.sizes import memory
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.modes.mode import EngineRole
from pdcore.group.modes.shared_cache import Refused, attachment
from pdcore.group.modes.versions import is_provably_below
from pdcore.group.spec import ExtendedKvCache
from pdcore.group.validation.subject import Subject, path_of

_SIDES: Final[tuple[EngineRole, ...]] = ("prefill", "decode")


def findings(subject: Subject) -> Iterator[Finding]:
    """Every reason against a cache, and advice about the versions of engines."""
    services: dict[str, tuple[str, str]] = {}
    for role in subject.engines:
        cache = role.extended_kv_cache
        if cache is None or cache == ExtendedKvCache():
            continue
        yield from _one(subject, role, cache)
        if cache.kind == "shared" and cache.service is not None:
            services[role.name] = (cache.provider or "", cache.service)
    if len(set(services.values())) > 1:
        prefill, decode = (" ".join(services[name]) for name in _SIDES)
        yield Finding(
            code="cache_services_differ",
            path="roles",
            message=f"prefill uses {prefill}, decode {decode}: what one stores the other never finds",
            remedy="give both roles the same service, or one of them none",
            values={"prefill": prefill, "decode": decode},
        )


def _one(subject: Subject, role: EffectiveRole, cache: ExtendedKvCache) -> Iterator[Finding]:
    place = path_of(role, "extended_kv_cache")
    mode = subject.mode.name
    if mode == "custom":
        yield Finding(
            code="cache_in_custom_mode",
            path=place,
            message="mode custom adds nothing to engines, so there is nothing to compose the cache with",
            remedy="remove it, and write the combined configuration into the engines' own flags",
            values={"role": role.name},
        )
        return
    incomplete = tuple(_kind(role, cache, place))
    yield from incomplete
    if not incomplete:
        yield from _attached(subject, role, cache, place)


def _kind(role: EffectiveRole, cache: ExtendedKvCache, place: str) -> Iterator[Finding]:
    if cache.kind is None:
        yield _incomplete(f"{place}.kind", "it does not say which kind of cache", "write local or shared")
    elif cache.kind == "local":
        yield from _local(role, cache, place)
    else:
        yield from _shared(cache, place)


def _local(role: EffectiveRole, cache: ExtendedKvCache, place: str) -> Iterator[Finding]:
    if cache.service is not None or cache.provider is not None:
        yield Finding(
            code="cache_local_with_service",
            path=f"{place}.service" if cache.service else f"{place}.provider",
            message="a local cache has no service",
            remedy="remove service and provider, or write kind: shared",
            values={"role": role.name, "service": cache.service, "provider": cache.provider},
        )
    if cache.size is None:
        return
    try:
        memory(cache.size)
    except ValueError as wrong:
        yield _incomplete(f"{place}.size", str(wrong), "write an amount like 20Gi")


def _shared(cache: ExtendedKvCache, place: str) -> Iterator[Finding]:
    if cache.service is None:
        yield _incomplete(
            f"{place}.service", "nobody said where the shared cache answers", "write its address"
        )
    if cache.provider is None:
        yield _incomplete(f"{place}.provider", "nobody said what the shared cache is", "write its provider")


def _attached(subject: Subject, role: EffectiveRole, cache: ExtendedKvCache, place: str) -> Iterator[Finding]:
    mode, side = subject.mode.name, next(name for name in _SIDES if name == role.name)
    found = attachment(mode, side, cache)
    if isinstance(found, Refused):
        yield Finding(
            code=found.code,
            path=place,
            message=found.message,
            remedy=f"write extended_kv_cache: {{}} for {role.name}, or use what the mode can be composed with",
            values={"role": role.name, "mode": mode, "kind": cache.kind, "provider": cache.provider},
        )
    elif role.image_name is None and is_provably_below(role.backend_version, found.versions):
        yield Finding(
            code="cache_engine_version",
            path=path_of(role, "backend_version"),
            message=f"such a cache is known to work with engines {found.versions}, {role.name} has "
            f"{role.backend_version}{f' ({found.note})' if found.note else ''}",
            remedy="use a newer engine, or make sure that yours has what it needs",
            values={"given": role.backend_version, "range": found.versions},
            severity="advisory",
        )


def _incomplete(path: str, message: str, remedy: str) -> Finding:
    return Finding(code="cache_incomplete", path=path, message=message, remedy=remedy)
