"""What is known of one engine at a fixed address, and what its answers make of it. Pure.

An engine comes up by an answer and goes down by a refusal or by what it says of itself. Silence alone changes nothing
here: it may be work, and the overlay judges it as everywhere. Whoever went down comes back as another incarnation,
which it has from that moment on, so that nothing that was learned of the old one or waits for it outlives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pdcore.router.models import ANY_MODEL

NOT_ASKED: Final = "it was not asked yet"
SILENT: Final = "it does not answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """It is well. ``incarnation`` if it names one; ``models`` if it was asked for them and answered."""

    incarnation: str | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """It refuses connections, or says itself that it cannot work."""

    why: str


@dataclass(frozen=True, slots=True)
class Silent:
    """No answer in time, or none that can be read."""


Heard = Answers | Fails | Silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """``incarnation`` is the one that is up, or the one it will be when it comes up. ``why`` it is not up, "" if it is.

    Until ``knows_models`` it has not said what it serves: what it served before, or anything.
    """

    incarnation: str
    is_up: bool = False
    models: tuple[str, ...] = (ANY_MODEL,)
    knows_models: bool = False
    why: str = NOT_ASKED

    def after(self, heard: Heard, fresh: Callable[[], str]) -> Standing:
        """The standing once ``heard``; ``fresh`` makes an incarnation that never was. The same one if nothing changed."""
        match heard:
            case Silent():
                return self if self.is_up else self._because(SILENT)
            case Fails(why=why):
                return (
                    Standing(incarnation=fresh(), models=self.models, why=why)
                    if self.is_up
                    else self._because(why)
                )
            case Answers(incarnation=named, models=models):
                return self._answered(named, models)

    def _answered(self, named: str | None, models: tuple[str, ...] | None) -> Standing:
        is_same = self.is_up and named in (None, self.incarnation)
        if is_same and (models is None or self.knows_models):
            return self
        return Standing(
            incarnation=named or self.incarnation,
            is_up=True,
            models=models or self.models,
            knows_models=models is not None,
            why="",
        )

    def _because(self, why: str) -> Standing:
        return self if why == self.why else replace(self, why=why)
