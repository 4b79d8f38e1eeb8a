"""Which mode an engine gets on a fleet's accelerators: one, or why none. Pure.

Nothing is chosen where a person could have meant something else: not among vendors, and not among recipes of which none
is preferred. ``custom`` is always possible and never derived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from pdcore.group.modes.mode import CUSTOM, Catalogue, Mode
from pdcore.group.spec import ModeName
from pdcore.topology.records import Json

Outcome = Literal[
    "no_built_in_recipe",
    "multiple_vendors",
    "vendors_unknown",
    "vendor_not_in_cluster",
    "no_preferred_recipe",
]
Mismatch = Literal["backend_mismatch", "vendor_mismatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A mode, and why it cannot be had here; without ``code`` it can."""

    mode: ModeName
    title: str
    code: Mismatch | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    message: str = ""

    @property
    def eligible(self) -> bool:
        return self.code is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """``mode`` is what was derived, else ``code`` says why nothing was. ``candidates`` are vendors to choose from."""

    mode: ModeName | None
    code: Outcome | None
    message: str
    candidates: tuple[str, ...]
    options: tuple[Option, ...]

    def document(self) -> dict[str, Json]:
        """The same for programs."""
        options: list[Json] = [{**asdict(one), "eligible": one.eligible} for one in self.options]
        return {
            "mode": self.mode,
            "code": self.code,
            "message": self.message,
            "candidates": list(self.candidates),
            "options": options,
        }


def resolve(
    catalogue: Catalogue, engine: str, vendors: Collection[str], chosen: str | None = None
) -> Resolution:
    """The mode for ``engine`` on a fleet with accelerators of ``vendors``, of which a person may have ``chosen`` one."""
    recipes = [one for one in catalogue.modes if one.name != CUSTOM and engine in one.backends]
    mode, code, message, candidates = _derived(recipes, engine, vendors, chosen)
    searched = {chosen} if chosen is not None else set(vendors)
    options = tuple(_option(one, engine, searched) for one in catalogue.modes)
    return Resolution(mode=mode, code=code, message=message, candidates=candidates, options=options)


_Answer = tuple[ModeName | None, Outcome | None, str, tuple[str, ...]]


def _derived(recipes: list[Mode], engine: str, vendors: Collection[str], chosen: str | None) -> _Answer:
    if not vendors:
        return _none(
            "vendors_unknown", "nobody has said yet which accelerators there are: wait for a ready engine"
        )
    if chosen is not None and chosen not in vendors:
        return _none(
            "vendor_not_in_cluster", f"no accelerator of {chosen} is there, only of {_listed(vendors)}"
        )
    wanted = sorted(vendors) if chosen is None else [chosen]
    hosts = [vendor for vendor in wanted if any(vendor in one.vendors for one in recipes)]
    if not hosts:
        there = f"there is no recipe for {engine} on {_listed(wanted)}"
        return _none("no_built_in_recipe", f"{there}: mode custom takes what you write")
    if len(hosts) > 1:
        asked = f"accelerators of {_listed(hosts)} could run {engine}: choose one with --vendor"
        return _none("multiple_vendors", asked, tuple(hosts))
    return _preferred([one for one in recipes if hosts[0] in one.vendors], engine, hosts[0])


def _preferred(recipes: list[Mode], engine: str, vendor: str) -> _Answer:
    preferred = recipes if len(recipes) == 1 else [one for one in recipes if one.preferred]
    if len(preferred) != 1:
        names = _listed(one.name for one in recipes)
        return _none("no_preferred_recipe", f"{names} could all run {engine} on {vendor}: name one")
    return preferred[0].name, None, f"{preferred[0].name}: {preferred[0].title}", ()


def _none(code: Outcome, message: str, candidates: tuple[str, ...] = ()) -> _Answer:
    return None, code, message, candidates


def _option(mode: Mode, engine: str, vendors: Collection[str]) -> Option:
    if mode.name == CUSTOM:
        return Option(mode=mode.name, title=mode.title)
    if engine not in mode.backends:
        return Option(
            mode=mode.name,
            title=mode.title,
            code="backend_mismatch",
            params={"wanted": list(mode.backends), "given": engine},
            message=f"is for {_listed(mode.backends)}, not for {engine}",
        )
    if not set(mode.vendors) & set(vendors):
        return Option(
            mode=mode.name,
            title=mode.title,
            code="vendor_mismatch",
            params={"wanted": list(mode.vendors), "given": list(sorted(vendors))},
            message=f"is for {_listed(mode.vendors)}, and there is {_listed(vendors)}",
        )
    return Option(mode=mode.name, title=mode.title)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing known"
