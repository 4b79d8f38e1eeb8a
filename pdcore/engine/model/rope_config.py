"""The rotary embedding as config.json describes it, in either of its spellings. Needs no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pdcore.engine.model.directory import Fields, refuse

RopeKind = Literal["default", "linear", "llama3", "yarn"]

_KINDS: Final[Mapping[str, RopeKind]] = {
    "default": "default",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """The rotary embedding. Fields a kind does not use keep their neutral values."""

    kind: RopeKind
    theta: float
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


def read_rope(directory: Path, document: Mapping[str, object], theta: float = 10000.0) -> RopeConfig:
    """``rope_parameters``, or ``rope_theta`` beside ``rope_scaling``; ``theta`` where neither names one."""
    given = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise refuse(
            directory, f"config.json: the rotary embedding's parameters are {given!r}, not an object"
        )
    named = given.get("rope_type", given.get("type", "default"))
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        known = ", ".join(_KINDS)
        raise refuse(directory, f"rotary embedding {named!r} is not supported (supported: {known})")
    if given.get("partial_rotary_factor", document.get("partial_rotary_factor", 1.0)) not in (1.0, None):
        raise refuse(directory, "partial rotary embeddings are not supported")
    fields = Fields(directory, "config.json", {"rope_theta": document.get("rope_theta"), **given})
    theta = fields.number("rope_theta", theta)
    if kind == "default":
        return RopeConfig(kind=kind, theta=theta)
    return _scaled(directory, kind, theta, fields, Fields(directory, "config.json", document))


def _scaled(directory: Path, kind: RopeKind, theta: float, fields: Fields, document: Fields) -> RopeConfig:
    def optional(name: str) -> float | None:
        return None if fields.given(name) is None else fields.number(name)

    whole = document.integer("max_position_embeddings")
    original = fields.integer("original_max_position_embeddings", whole)
    rope = RopeConfig(
        kind=kind,
        theta=theta,
        factor=fields.number("factor"),
        original_context=document.integer("original_max_position_embeddings", original),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", True),
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
    )
    if rope.low_freq_factor >= rope.high_freq_factor or rope.theta <= 1:
        raise refuse(directory, "config.json: the rotary embedding's bounds are contradictory")
    return rope
