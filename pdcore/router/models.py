"""Which model a request means, by what the fleet says that it serves. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pdcore.errors import ApiError

ANY_MODEL: Final = "*"
"""What an instance serves that does not say what it serves: whatever it is asked for."""


def named(known: Iterable[str]) -> list[str]:
    """Those of ``known`` that have a name."""
    return [model for model in known if model != ANY_MODEL]


def meant(known: tuple[str, ...], asked: str | None) -> str:
    """The one of ``known``, of which there is at least one, that a request means which asked for ``asked``.

    Raises the 400 of a request that must name one, and the 404 of one that names another.
    """
    if asked is None:
        names = named(known)
        if len(names) > 1:
            why = f"model is missing; served are {', '.join(names)}"
            raise ApiError("invalid_request", why, param="model")
        return names[0] if names else ANY_MODEL
    if asked in known and asked != ANY_MODEL:
        return asked
    if ANY_MODEL in known:
        return ANY_MODEL
    raise ApiError("model_not_found", f"model {asked[:128]!r} is not served here", param="model")
