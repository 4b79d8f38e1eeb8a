"""The catalogue of this release: read once from the file beside this module, refused as a whole when anything is wrong."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
import yaml

from pdcore.errors import ConfigError
from pdcore.group.modes import self_checks
from pdcore.group.modes.mode import Catalogue

FILE: Final = "catalogue.yaml"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast where the C library is there; what guards against strangers' files is not needed for our own."""


@cache
def catalogue() -> Catalogue:
    """Every mode of this release. ConfigError when the file was tampered with."""
    return read_catalogue(files("pdcore.group.modes").joinpath(FILE).read_text(encoding="utf-8"))


def read_catalogue(text: str) -> Catalogue:
    """The catalogue that ``text`` is; ConfigError with its first wrong type, or else every rule that it breaks."""
    try:
        read = msgspec.convert(yaml.load(text, Loader=_LOADER), Catalogue)
    except (msgspec.ValidationError, yaml.YAMLError) as wrong:
        raise ConfigError(f"{FILE}: {' '.join(str(wrong).split())}") from None
    problems = self_checks.problems(read)
    if problems:
        raise ConfigError(*(f"{FILE}: {problem}" for problem in problems))
    return read
