"""The JSON Schema of a group's file, made of the types that read it. Pure."""

from __future__ import annotations

from pdcore.group.spec import GROUP
from pdcore.topology.records import Json


def schema() -> dict[str, Json]:
    """The whole schema. It knows shapes, not rules: what it accepts ``pdcore group check`` may still refuse."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pdcore group",
        **GROUP.schema(),
    }
