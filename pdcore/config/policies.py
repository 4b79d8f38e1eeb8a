"""The names of the picking policies, and how settings give them to models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pdcore.config.spelling import closest

POLICY_NAMES: Final = (
    "round_robin",
    "random",
    "power_of_two",
    "least_loaded",
    "room_hash",
    "prefix_affinity",
)
ALIASES: Final[Mapping[str, str]] = {"cache_aware": "prefix_affinity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNames:
    """What one setting says: a policy for every model it does not name, and those it names."""

    usual: str | None = None
    by_model: Mapping[str, str] = field(default_factory=dict)


def policy_names(value: str) -> PolicyNames:
    """``NAME``, or ``MODEL=NAME``, or several of them with commas between."""
    usual: str | None = None
    by_model: dict[str, str] = {}
    for part in value.split(","):
        model, named, name = part.strip().rpartition("=")
        if name not in POLICY_NAMES and name not in ALIASES:
            known = (*POLICY_NAMES, *ALIASES)
            raise ValueError(
                f"{name!r} is no policy{closest(name, known)}; there are {', '.join(known)}, "
                "each alone or as MODEL=NAME, with commas between"
            )
        if model in by_model or (not named and usual is not None):
            raise ValueError(f"{value!r} says twice what holds for {model or 'all other models'}")
        if named and not model:
            raise ValueError(f"{part.strip()!r} names no model")
        if named:
            by_model[model] = name
        else:
            usual = name
    return PolicyNames(usual=usual, by_model=by_model)
