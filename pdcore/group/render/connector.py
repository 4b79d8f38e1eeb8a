"""The value of vLLM's ``--kv-transfer-config``, and what a KV cache beside it adds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pdcore.group.effective import EffectiveRole
from pdcore.group.flags import KV_TRANSFER_CONFIG
from pdcore.group.modes.mode import EngineRole, Mode, RoleRecipe
from pdcore.group.modes.placeholders import Facts, names_in, substituted
from pdcore.group.modes.shared_cache import Part, Refused, attachment, composed, facts_of, fitted
from pdcore.group.render.facts import sizes_of, source_of
from pdcore.group.render.rendered import Note, Word
from pdcore.group.spec import ExtendedKvCache
from pdcore.topology.records import Json

FLAG: Final = "--kv-transfer-config"
NOTHING: Final = Part()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What a KV cache adds to one role, and what its placeholders stand for."""

    part: Part = NOTHING
    facts: Facts = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def cache_of(mode: Mode, name: EngineRole, role: EffectiveRole, accelerators: int | None) -> Cache:
    """The cache that ``role`` asks for; nothing, and a note, where it cannot be had."""
    wanted = role.extended_kv_cache
    if wanted is None or wanted == ExtendedKvCache():
        return Cache()
    if owns_descriptor(role):
        return _not_injected("the role's own --kv-transfer-config stands in its place")
    found = attachment(mode.name, name, wanted)
    if isinstance(found, Refused):
        return _not_injected(found.message)
    try:
        facts = facts_of(wanted, sizes_of(role, accelerators).cards)
    except ValueError as wrong:
        return _not_injected(str(wrong))
    return Cache(part=fitted(found.roles[name], found, wanted, facts), facts=facts)


def descriptor_words(
    name: EngineRole, role: EffectiveRole, recipe: RoleRecipe, cache: Cache, facts: Facts
) -> tuple[Word, ...]:
    """The flag and its value: the mode's connector, with the cache's as its second; none where the user wrote one."""
    descriptor = _composed(name, recipe.descriptor, cache.part.descriptor)
    if descriptor is None or owns_descriptor(role):
        return ()
    filled = substituted(descriptor, {**facts, **cache.facts})
    value = json.dumps(filled, separators=(",", ":"), ensure_ascii=False)
    return Word(FLAG, "mode"), Word(value, source_of(list(names_in(descriptor))))


def descriptor_notes(role: EffectiveRole, recipe: RoleRecipe) -> tuple[Note, ...]:
    """That the mode's connector was left out, where it was."""
    if recipe.descriptor is None or not owns_descriptor(role):
        return ()
    message = f"the role's own {FLAG} is used instead of the mode's; its ports and variables are still set"
    return (Note("descriptor_is_users", message),)


def owns_descriptor(role: EffectiveRole) -> bool:
    """Whether the user wrote the connector, in either spelling of the flag."""
    return role.flags.last(KV_TRANSFER_CONFIG) is not None


def _composed(
    name: EngineRole, pd: Mapping[str, Json] | None, store: Mapping[str, Json] | None
) -> dict[str, Json] | None:
    if pd is None or store is None:
        alone = pd or store
        return None if alone is None else dict(alone)
    return composed(pd, store, name)


def _not_injected(why: str) -> Cache:
    return Cache(notes=(Note("cache_not_injected", f"the KV cache is not attached: {why}"),))
