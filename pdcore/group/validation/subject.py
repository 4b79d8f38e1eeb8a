"""What the rules look at: the spec, its mode, each role's effective fields, and what is known of the world. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pdcore.group.effective import EffectiveRole, effective_roles
from pdcore.group.model_config import ModelConfig, overridden
from pdcore.group.modes.mode import Catalogue, Mode, RouterRecipe
from pdcore.group.spec import ENGINE_ROLES, GroupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One spec under examination.

    ``router`` is the mode's managed one. ``model`` is None where its config cannot be read from here; ``vendors`` are
    those of the cluster's accelerators, None where nobody said.
    """

    spec: GroupSpec
    mode: Mode
    router: RouterRecipe | None
    roles: Mapping[str, EffectiveRole]
    model: ModelConfig | None
    vendors: frozenset[str] | None

    @classmethod
    def of(
        cls,
        spec: GroupSpec,
        catalogue: Catalogue,
        *,
        model: ModelConfig | None,
        vendors: Collection[str] | None = None,
    ) -> Subject:
        """``spec`` with all that follows from it."""
        mode = catalogue.mode(spec.mode)
        return cls(
            spec=spec,
            mode=mode,
            router=catalogue.router_of(mode),
            roles=effective_roles(spec, mode),
            model=model,
            vendors=None if vendors is None else frozenset(vendors),
        )

    @property
    def engines(self) -> tuple[EffectiveRole, ...]:
        """Prefill and decode, as far as they are there."""
        return tuple(self.roles[name] for name in ENGINE_ROLES if name in self.roles)

    @property
    def pair(self) -> tuple[EffectiveRole, EffectiveRole] | None:
        """Prefill and decode when both are there."""
        found = self.engines
        return (found[0], found[1]) if len(found) == len(ENGINE_ROLES) else None

    def model_of(self, role: EffectiveRole) -> ModelConfig | None:
        """The model as that role's flags change it."""
        return overridden(self.model, role.flags)

    @property
    def shared_model(self) -> ModelConfig | None:
        """The model as both engines see it; None where they see different ones, or nobody can tell."""
        seen = [self.model_of(role) for role in self.engines]
        return seen[0] if seen and all(one == seen[0] for one in seen) else None

    @property
    def is_native(self) -> bool:
        """Whether both engines are pdcore's own."""
        return bool(self.engines) and all(role.backend == "pdcore" for role in self.engines)


def path_of(role: EffectiveRole, field: str) -> str:
    """Where the value of a role's field was written."""
    return field if role.sources.get(field) == "inherited" else f"roles.{role.name}.{field}"
