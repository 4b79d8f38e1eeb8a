"""A group's file as commands take it: read, checked, and refused with every reason."""

from __future__ import annotations

from pathlib import Path

from pdcore.group.spec import GroupSpec, read_spec
from pdcore.group.validation.check import accepted


def accepted_spec(file: Path) -> GroupSpec:
    """The spec in ``file``. SpecRefused with every reason against it; ConfigError for a file that is no bounded YAML."""
    spec = read_spec(file)
    accepted(spec)
    return spec
