"""Which KV cache goes beside which mode and role, and how two connectors become the one that vLLM takes. Pure but for the file.

The table is data (``shared_caches.yaml``). What is not in it is refused: nobody knows that it works.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

import msgspec
import yaml
from msgspec import Struct

from pdcore.config.sizes import memory
from pdcore.errors import ConfigError
from pdcore.group.modes.mode import EngineRole, HostFile
from pdcore.group.modes.placeholders import Facts, names_in
from pdcore.group.spec import CacheProvider, ExtendedKvCache, ModeName
from pdcore.topology.records import Json

FILE: Final = "shared_caches.yaml"
OUTER_ROLE: Final[Mapping[EngineRole, str]] = {"prefill": "kv_producer", "decode": "kv_consumer"}
MULTI: Final = "MultiConnector"

_POLICY: Final = "kv_load_failure_policy"
_EXTRA: Final = "kv_connector_extra_config"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OPTIONAL: Final = frozenset(
    f"cache.{name}" for name in ("gigabytes", "whole_gigabytes", "bytes_per_rank", "ratio")
)
_GIGABYTE: Final = 1 << 30

RefusalCode = Literal[
    "cache_not_in_mode", "cache_provider_unsupported", "cache_role_unsupported", "cache_kind_unsupported"
]


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cache adds to one role: a second connector, or flags; or with ``refused`` why there must be none."""

    descriptor: dict[str, Any] | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: tuple[HostFile, ...] = ()
    refused: str = ""


class Attachment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of cache in one mode. ``options`` is where the spec's own options go; ``versions`` is advice."""

    roles: dict[EngineRole, Part]
    versions: str | None = None
    note: str = ""
    options: Literal["descriptor", "files", "args"]


class ModeCaches(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that may be attached in one mode."""

    local: Attachment | None = None
    services: dict[CacheProvider, Attachment] = {}


Caches = Mapping[ModeName, ModeCaches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a cache cannot be attached."""

    code: RefusalCode
    message: str


@cache
def shared_caches() -> Caches:
    """The table of this release. ConfigError when the file was tampered with."""
    text = files("pdcore.group.modes").joinpath(FILE).read_text(encoding="utf-8")
    try:
        return msgspec.convert(yaml.load(text, Loader=_LOADER), dict[ModeName, ModeCaches])
    except (msgspec.ValidationError, yaml.YAMLError) as wrong:
        raise ConfigError(f"{FILE}: {' '.join(str(wrong).split())}") from None


def attachment(mode: ModeName, role: EngineRole, wanted: ExtendedKvCache) -> Attachment | Refused:
    """What ``wanted`` is in ``mode`` for ``role``, whose part is then there."""
    here = shared_caches().get(mode)
    if here is None:
        return Refused(
            code="cache_not_in_mode", message=f"mode {mode} composes no KV cache with its own transport"
        )
    found = here.local if wanted.kind == "local" else here.services.get(wanted.provider or "lmcache")
    if found is None:
        return _unsupported(mode, wanted, here)
    part = found.roles.get(role)
    if part is None or part.refused:
        why = part.refused if part is not None else f"{role} takes no such cache"
        return Refused(
            code="cache_role_unsupported", message=f"mode {mode} attaches it to another role only: {why}"
        )
    return found


def facts_of(wanted: ExtendedKvCache, ranks: int | None) -> Facts:
    """What the table's placeholders stand for; ``ranks`` share a local cache. Nothing for what the spec does not say."""
    found: dict[str, str | int] = {}
    if wanted.service is not None:
        host, _, port = wanted.service.rpartition("://")[2].rstrip("/").rpartition(":")
        found["cache.service"] = wanted.service
        if host and port.isdigit():
            found |= {"cache.host": host, "cache.port": int(port)}
    if wanted.size is not None:
        size = memory(wanted.size)
        found["cache.gigabytes"] = f"{size / _GIGABYTE:.3f}".rstrip("0").rstrip(".")
        found["cache.whole_gigabytes"] = max(1, size // _GIGABYTE)
        found["cache.bytes_per_rank"] = size // (ranks or 1)
    if wanted.ratio is not None:
        found["cache.ratio"] = f"{wanted.ratio:g}"
    return found


def fitted(part: Part, found: Attachment, wanted: ExtendedKvCache, facts: Facts) -> Part:
    """``part`` without what only an absent size or ratio would fill, and with the spec's own options."""
    missing = _OPTIONAL - facts.keys()
    options = dict(wanted.options or {})
    args = [word for word in part.args if not missing & set(names_in(word))]
    descriptor = None if part.descriptor is None else _without(part.descriptor, missing)
    written = part.files
    if options and found.options == "descriptor" and descriptor is not None:
        descriptor[_EXTRA] = {**descriptor.get(_EXTRA, {}), **options}
    elif options and found.options == "files":
        written = tuple(
            msgspec.structs.replace(one, content={**(one.content or {}), **options}) for one in part.files
        )
    elif options and found.options == "args":
        args += [_flag(name, value) for name, value in options.items()]
    return Part(
        descriptor=descriptor,
        args=tuple(args),
        env={name: value for name, value in part.env.items() if not missing & set(names_in(value))},
        files=written,
    )


def composed(pd: Mapping[str, Json], store: Mapping[str, Json], role: EngineRole) -> dict[str, Json]:
    """Both connectors as one, the PD connector first. The policy is lifted, because the engine reads it only outside."""
    outer: dict[str, Json] = {
        "kv_connector": MULTI,
        "kv_role": OUTER_ROLE[role],
        _EXTRA: {"connectors": [dict(pd), dict(store)]},
    }
    if _POLICY in pd:
        outer[_POLICY] = pd[_POLICY]
    return outer


def _without(descriptor: Mapping[str, Any], missing: frozenset[str]) -> dict[str, Any]:
    """``descriptor`` without entries that name what is ``missing``, and without what is empty for that reason."""
    made: dict[str, Any] = {}
    for name, value in descriptor.items():
        if isinstance(value, Mapping):
            inner = _without(value, missing)
            if inner or not value:
                made[name] = inner
        elif not missing & set(names_in(value)):
            made[name] = value
    return made


def _flag(name: str, value: Json) -> str:
    """An option as a flag, alone where it is only switched on."""
    flag = f"--{name.lstrip('-').replace('_', '-')}"
    return flag if value is True else f"{flag}={value if isinstance(value, str) else json.dumps(value)}"


def _unsupported(mode: str, wanted: ExtendedKvCache, here: ModeCaches) -> Refused:
    known = ", ".join(sorted(here.services)) or "none"
    if wanted.kind == "local":
        return Refused(
            code="cache_kind_unsupported", message=f"mode {mode} has no local cache, only services: {known}"
        )
    return Refused(
        code="cache_provider_unsupported",
        message=f"mode {mode} takes services of {known}, not of {wanted.provider or 'an unnamed provider'}",
    )
