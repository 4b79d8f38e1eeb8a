"""Which policy serves which model and role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pdcore.config.policies import ALIASES, PolicyNames
from pdcore.router.policies.base import Policy
from pdcore.router.policies.least_loaded import LeastLoaded
from pdcore.router.policies.power_of_two import PowerOfTwo
from pdcore.router.policies.prefix_affinity import PrefixAffinity
from pdcore.router.policies.random import Random
from pdcore.router.policies.room_hash import RoomHash
from pdcore.router.policies.round_robin import RoundRobin

_ALL: Final[tuple[Policy, ...]] = (
    RoundRobin(),
    Random(),
    PowerOfTwo(),
    LeastLoaded(),
    RoomHash(),
    PrefixAffinity(),
)
POLICIES: Final[Mapping[str, Policy]] = {policy.name: policy for policy in _ALL}
USUAL_PREFILL: Final = "prefix_affinity"
USUAL_DECODE: Final = "round_robin"
_NOTHING: Final = PolicyNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePolicies:
    """The policies of one model. A unified instance is chosen like a prefill: that is where prefixes count."""

    prefill: Policy
    decode: Policy

    @property
    def reads_prompts(self) -> bool:
        """Whether one of them goes by the prompt."""
        return PrefixAffinity.name in (self.prefill.name, self.decode.name)


class Selection:
    """The policies by model. What is said of a model comes before what is said of all, and there of a role before both.

    Nothing is remembered per model but those that the settings name.
    """

    def __init__(
        self,
        everywhere: PolicyNames | None = None,
        prefill: PolicyNames | None = None,
        decode: PolicyNames | None = None,
    ) -> None:
        both = everywhere or _NOTHING
        roles = (prefill or _NOTHING, decode or _NOTHING)
        self._usual = _policies(both, *roles, None)
        named = {model for names in (both, *roles) for model in names.by_model}
        self._by_model = {model: _policies(both, *roles, model) for model in named}

    def of(self, model: str) -> RolePolicies:
        """The policies for ``model``."""
        return self._by_model.get(model, self._usual)


def _policies(
    both: PolicyNames, prefill: PolicyNames, decode: PolicyNames, model: str | None
) -> RolePolicies:
    def named(role: PolicyNames, usual: str) -> Policy:
        for_model = None if model is None else role.by_model.get(model) or both.by_model.get(model)
        name = for_model or role.usual or both.usual or usual
        return POLICIES[ALIASES.get(name, name)]

    return RolePolicies(prefill=named(prefill, USUAL_PREFILL), decode=named(decode, USUAL_DECODE))


USUAL: Final = Selection()
