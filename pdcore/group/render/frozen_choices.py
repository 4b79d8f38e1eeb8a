"""What a generation must keep beside the spec, because it was read from the model once and must not change. Reads a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pdcore.group.effective import effective_roles
from pdcore.group.flags import Flags
from pdcore.group.model_config import ModelConfig, NoModelConfig, is_path, read_model_config
from pdcore.group.modes.ascend_connector import connector_for
from pdcore.group.modes.mode import Mode
from pdcore.group.modes.placeholders import names_in
from pdcore.group.spec import GroupSpec

ASCEND_CONNECTOR: Final = "ascend_connector"


def frozen_choices(spec: GroupSpec, mode: Mode) -> Mapping[str, str]:
    """The choices that ``mode`` leaves to the model of ``spec``, by the names of their placeholders."""
    wanted = {name for recipe in mode.roles.values() for name in names_in(recipe.descriptor)}
    if ASCEND_CONNECTOR not in wanted:
        return {}
    prefill = effective_roles(spec, mode).get("prefill")
    flags = Flags.of(()) if prefill is None else prefill.flags
    return {ASCEND_CONNECTOR: connector_for(_config(spec.model), flags)}


def _config(model: str) -> ModelConfig | None:
    """The model's config where its directory is on this machine and readable."""
    if not is_path(model):
        return None
    try:
        return read_model_config(Path(model).expanduser())
    except NoModelConfig:
        return None
