"""A generation: the effective spec of every role, frozen when the group was started on it. Pure.

Whoever starts a member reads the generation, never the spec, so that a member that crashed or was added later is the
same as those it pairs with, whatever was saved meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pdcore.group.control.members import ENGINE_ROLES, ROLES, MemberRole
from pdcore.group.effective import effective_role
from pdcore.group.finding import Finding
from pdcore.group.flags import argv_of
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.render.frozen_choices import ASCEND_CONNECTOR
from pdcore.group.spec import OVERRIDES, GroupSpec, RoleSpec
from pdcore.topology.records import DocumentRecord, Json

_NOT_IN_DIGEST: Final = (
    *("generation", "package", "digest", "readiness", "restart_on_error"),
    *(ASCEND_CONNECTOR, "advice"),
)

TOLD: Final = frozenset(
    {
        "pairing_unverified",
        "engine_version_below_recipe_floor",
        "cache_engine_version",
        "ascend_dp_unverified",
    }
)
"""Findings that are no reason against a spec and that its group's state tells."""


class UnreadableGeneration(ValueError):
    """The record is no generation that a member can be started from; a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenRole:
    """What a member of one role is started from."""

    backend: str | None
    run_command: str | None
    parameters: tuple[str, ...]
    env: Mapping[str, str]
    protocol: str | None
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A frozen generation. ``digest`` is equal for specs that would start the same members."""

    number: int
    digest: str
    package: str
    mode: str
    model: str
    model_name: str
    readiness: str
    restart_on_error: bool
    roles: Mapping[str, FrozenRole]
    document: Mapping[str, Json]

    @property
    def is_manual(self) -> bool:
        """Whether its router is the user's own, who then keeps the list of members."""
        router = self.roles.get("router")
        return self.mode == "custom" and router is not None and router.run_command is not None

    @property
    def advice(self) -> tuple[tuple[str, str], ...]:
        """Code and sentence of what could not be told, or may not do, when it was made."""
        said = self.document.get("advice")
        found = said if isinstance(said, list) else []
        return tuple(
            (str(one.get("code")), str(one.get("sentence"))) for one in found if isinstance(one, dict)
        )


def frozen(
    spec: GroupSpec,
    number: int,
    package: str,
    choices: Mapping[str, str] | None = None,
    findings: Iterable[Finding] = (),
) -> Generation:
    """``spec`` as generation ``number``, made by version ``package``.

    ``choices`` were read from the model once and are kept, and so is what of the ``findings`` about the spec a state tells
    for as long as it runs; they make no generation another one, because a config that becomes readable later must not.
    """
    document: dict[str, Json] = {
        "generation": number,
        "package": package,
        "mode": spec.mode,
        "model": spec.model,
        "model_name": spec.served_name,
        "kv_load_failure_policy": spec.kv_load_failure_policy,
        "vendor": spec.vendor,
        "readiness": spec.readiness,
        "restart_on_error": spec.restart_on_error,
        "network": _plain(asdict(spec.network)),
        "roles": {role.name: _effective(spec, role) for role in spec.roles if role.name in ROLES},
    }
    document["digest"] = digest(document)
    document["advice"] = [
        {"code": one.code, "sentence": f"{one.path}: {one.message}"} for one in findings if one.code in TOLD
    ]
    return read({**document, **(choices or {})})


def digest(document: Mapping[str, Json]) -> str:
    """What two generations have in common that start the same members."""
    kept = {name: value for name, value in document.items() if name not in _NOT_IN_DIGEST}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


def read(document: Mapping[str, Any]) -> Generation:
    """Read a generation's record. Raises :class:`UnreadableGeneration`."""
    try:
        return Generation(
            number=int(document["generation"]),
            digest=str(document["digest"]),
            package=str(document["package"]),
            mode=str(document["mode"]),
            model=str(document["model"]),
            model_name=str(document["model_name"]),
            readiness=str(document["readiness"]),
            restart_on_error=bool(document["restart_on_error"]),
            roles={str(name): _role(found) for name, found in document["roles"].items()},
            document=document,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as wrong:
        raise UnreadableGeneration(f"is no generation: {wrong!r}") from wrong


def generation_of(record: DocumentRecord | None) -> Generation | None:
    """The generation that ``record`` says, None where there is none to start from."""
    if record is None:
        return None
    try:
        return read(record.document)
    except UnreadableGeneration:
        return None


def wanted(spec: GroupSpec) -> dict[MemberRole, int]:
    """How many members of each role ``spec`` says."""
    return {role: spec.replicas.get(role, 1 if role in ENGINE_ROLES else 0) for role in ROLES}


def _effective(spec: GroupSpec, role: RoleSpec) -> dict[str, Json]:
    """Every field that a role can override, as it is for ``role``, and what is the role's alone."""
    effective = effective_role(spec, role, catalogue().mode(spec.mode))
    made: dict[str, Json] = {name: _plain(getattr(effective, name)) for name in OVERRIDES}
    made["protocol"] = effective.protocol
    made["dependencies"] = list(role.dependencies or _needed_by(spec, role))
    return made


def _needed_by(spec: GroupSpec, role: RoleSpec) -> tuple[str, ...]:
    """A router that follows the keyspace waits for nobody; one of ours before foreign engines is told where they are."""
    is_told = role.name == "router" and spec.mode == "custom" and role.protocol is not None
    return ENGINE_ROLES if is_told else ()


def _role(found: Mapping[str, Any]) -> FrozenRole:
    return FrozenRole(
        backend=found.get("backend"),
        run_command=found.get("run_command"),
        parameters=argv_of(str(one) for one in found.get("backend_parameters") or ()),
        env={str(name): str(value) for name, value in (found.get("env") or {}).items()},
        protocol=found.get("protocol"),
        dependencies=tuple(str(one) for one in found.get("dependencies") or ()),
    )


def _plain(value: object) -> Any:
    """As JSON has it: tuples are lists, records are objects."""
    return json.loads(json.dumps(value, default=lambda one: asdict(one)))
