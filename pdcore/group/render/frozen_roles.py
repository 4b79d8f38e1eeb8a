"""A frozen generation's record as what its members are rendered from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, get_args

from pdcore.group.effective import EffectiveRole
from pdcore.group.kinds import Problems, Record
from pdcore.group.render.facts import GroupFacts
from pdcore.group.render.frozen_choices import ASCEND_CONNECTOR
from pdcore.group.spec import KvLoadFailurePolicy, RoleSpec
from pdcore.topology.records import Json

_ROLE: Final = Record(RoleSpec)
_NAMES: Final = frozenset(one.name for one in fields(RoleSpec))


class UnreadableRoles(ValueError):
    """The record is none that members can be rendered from; a sentence."""


def frozen_group(
    group: str, document: Mapping[str, Any], *, python: str, store: str, cluster: str
) -> GroupFacts:
    """What holds for members of the generation that ``document`` is. Raises UnreadableRoles."""
    roles = document.get("roles")
    policy = document.get("kv_load_failure_policy", "fail")
    if not isinstance(roles, Mapping) or policy not in get_args(KvLoadFailurePolicy):
        raise UnreadableRoles("it has no roles, or a policy that nobody knows")
    return GroupFacts(
        group=group,
        generation=int(document["generation"]),
        model=str(document["model"]),
        model_name=str(document["model_name"]),
        policy=policy,
        roles={str(name): _role(str(name), said) for name, said in roles.items()},
        python=python,
        store=store,
        cluster=cluster,
        ascend_connector=_text(document.get(ASCEND_CONNECTOR)),
    )


def _role(name: str, said: Mapping[str, Json]) -> EffectiveRole:
    problems: Problems = []
    known = {field: value for field, value in said.items() if field in _NAMES and value is not None}
    read = _ROLE.read({**known, "name": name}, name, problems)
    if not isinstance(read, RoleSpec):
        raise UnreadableRoles("; ".join(map(str, problems)))
    own = {one.name: getattr(read, one.name) for one in fields(RoleSpec)}
    own["dependencies"] = read.dependencies or ()
    return EffectiveRole(**own, sources={})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
