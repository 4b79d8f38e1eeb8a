"""The configuration of cann-recipes-infer: ``prefill.yaml`` and ``decode.yaml``, each in sections. Pure.

A key either sets one of our settings, takes part in the sizes, or is known and not used: those are reported, so that
nobody believes in a switch that does nothing. Everything else is refused by its name.

``parallel_config.world_size`` counts the ranks of one instance: dp = world_size / (attn_tp_size * cp_size).
``scheduler_config.batch_size`` counts requests of one instance, our ``max_batch`` those of one data parallel group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pdcore.config.engine import ENGINE
from pdcore.config.setting import Parse, integer
from pdcore.config.spelling import closest
from pdcore.errors import ConfigError

ROLE_FILES: Final[Mapping[str, str]] = {"prefill": "prefill.yaml", "decode": "decode.yaml"}

_PARSE: Final[Mapping[str, Parse]] = {setting.name: setting.parse for setting in ENGINE}
_DEFAULT_BLOCK_SIZE: Final = next(setting.default for setting in ENGINE if setting.name == "block_size")

_SETS: Final[Mapping[str, Mapping[str, str]]] = {
    "model_config": {"model_name": "model_name", "model_path": "model"},
    "parallel_config": {},
    "scheduler_config": {
        "block_size": "block_size",
        "max_prefill_tokens": "max_prefill_tokens",
        "num_reserved_decode_tokens": "num_reserved_decode_tokens",
    },
    "data_config": {},
}
_LAYER_SIZES: Final = ("dense_tp_size", "moe_tp_size", "embed_tp_size", "lmhead_tp_size", "o_proj_tp_size")
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "model_config": (),
    "parallel_config": ("world_size", "attn_tp_size", "cp_size", "pp_size", *_LAYER_SIZES),
    "scheduler_config": ("batch_size",),
    "data_config": (),
}
_UNUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "model_config": (
        *("with_ckpt", "exe_mode", "force_eplb", "next_n"),
        *("custom_params", "platform_version", "micro_batch_mode"),
    ),
    "parallel_config": (),
    "scheduler_config": ("max_new_tokens", "mem_fraction_static", "temperature"),
    "data_config": ("input_truncated_len", "temperature"),
}
_UNUSED_PREFIX: Final = ("model_config", "enable_")
_REPEATED_OUTSIDE: Final[Mapping[str, str]] = {"model_name": "model_config", "world_size": "parallel_config"}
"""Keys that start scripts there read at the top of the file, and the section that they repeat."""

_count = integer(1, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSettings:
    """What a file says: texts by the name of our setting, and the known keys in it that nothing here uses."""

    values: Mapping[str, str]
    ignored: tuple[str, ...]


@dataclass(slots=True)
class _Reading:
    """One file while it is read. Mutable: everything but ``file`` and ``role``."""

    file: str
    role: str
    sections: dict[str, Mapping[object, object]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def refuse(self, problem: str) -> None:
        self.problems.append(f"{self.file}: {problem}")

    def count(self, section: str, key: str) -> int | None:
        """The whole number at ``section.key``; None when it is not there or none, which is then a problem."""
        if key not in self.sections.get(section, {}):
            return None
        value = self.sections[section][key]
        try:
            number = _count(_text(value))
        except ValueError as wrong:
            self.refuse(f"{section}.{key}: {wrong}")
            return None
        assert isinstance(number, int)
        return number


def read_settings(document: object, file: str, role: str) -> RecipeSettings:
    """The settings in ``document``, which is the content of ``file``, for ``role``. ConfigError with every problem."""
    reading = _Reading(file, role)
    _read_sections(reading, document)
    for section, keys in reading.sections.items():
        for key, value in keys.items():
            _read_key(reading, section, key, value)
    dp = _read_sizes(reading)
    _read_batch(reading, dp)
    if reading.problems:
        raise ConfigError(*reading.problems)
    return RecipeSettings(values=reading.values, ignored=tuple(reading.ignored))


def check_pair(directory: str, prefill: RecipeSettings, decode: RecipeSettings) -> None:
    """ConfigError where the files of one directory can never form a pair."""
    sizes = [one.values.get("block_size", _DEFAULT_BLOCK_SIZE) for one in (prefill, decode)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{directory}: scheduler_config.block_size is {sizes[0]} in prefill.yaml and {sizes[1]} in decode.yaml;"
            " a pair must agree on it"
        )


def _read_sections(reading: _Reading, document: object) -> None:
    if not isinstance(document, Mapping):
        reading.refuse(f"must hold the sections {', '.join(_SETS)}")
        return
    for name, content in document.items():
        if name == "disagg_config":
            reading.refuse("disagg_config is not read from a file: give role, addresses and ports as flags")
        elif name in _SETS:
            _read_section(reading, str(name), content)
        elif name not in _REPEATED_OUTSIDE:
            reading.refuse(f"unknown key {_shown(name)}{closest(str(name), _SETS)}")
    for name, section in _REPEATED_OUTSIDE.items():
        _check_repeated(reading, document, name, section)


def _read_section(reading: _Reading, name: str, content: object) -> None:
    if content is None:
        content = {}
    if isinstance(content, Mapping):
        reading.sections[name] = content
    else:
        reading.refuse(f"{name} must hold keys, not {_shown(content)}")


def _check_repeated(reading: _Reading, document: Mapping[object, object], name: str, section: str) -> None:
    inside = reading.sections.get(section, {})
    if name in document and (name not in inside or document[name] != inside[name]):
        there = _shown(inside[name]) if name in inside else "missing"
        reading.refuse(f"{name} is {_shown(document[name])} at the top, while {section}.{name} is {there}")


def _read_key(reading: _Reading, section: str, key: object, value: object) -> None:
    name = f"{section}.{key}"
    if key in _COUNTS[section]:
        return
    if key in _SETS[section]:
        _set(reading, _SETS[section][str(key)], name, value)
    elif key in _UNUSED[section] or (section == _UNUSED_PREFIX[0] and str(key).startswith(_UNUSED_PREFIX[1])):
        reading.ignored.append(name)
    else:
        known = (*_SETS[section], *_COUNTS[section], *_UNUSED[section])
        reading.refuse(f"unknown key {_shown(key)} in {section}{closest(str(key), known)}")


def _set(reading: _Reading, setting: str, name: str, value: object) -> None:
    try:
        text = _text(value)
        _PARSE[setting](text)
    except ValueError as wrong:
        reading.refuse(f"{name}: {wrong}")
        return
    reading.values[setting] = text


def _read_sizes(reading: _Reading) -> int | None:
    """Set tp, cp and dp; dp (1 when the file says nothing of sizes), or None when they are wrong."""
    counts = {key: reading.count("parallel_config", key) for key in _COUNTS["parallel_config"]}
    tp, cp, world = counts["attn_tp_size"] or 1, counts["cp_size"] or 1, counts["world_size"]
    if counts["pp_size"] not in (None, 1):
        reading.refuse(f"parallel_config.pp_size: {counts['pp_size']} must be 1")
    if reading.role == "decode" and cp != 1:
        reading.refuse(f"parallel_config.cp_size: {cp} must be 1 for decode")
    for key in _LAYER_SIZES:
        if counts[key] not in (None, tp):
            reading.refuse(
                f"parallel_config.{key}: {counts[key]} is not attn_tp_size {tp}, and one size holds for all layers"
            )
    if not reading.sections.get("parallel_config"):
        return 1
    if "world_size" not in reading.sections["parallel_config"]:
        reading.refuse("parallel_config.world_size is missing")
    if world is None:
        return None
    if world % (tp * cp):
        reading.refuse(
            f"parallel_config.world_size: {world} does not divide by attn_tp_size {tp} * cp_size {cp}"
        )
        return None
    dp = world // (tp * cp)
    reading.values |= {"tp": str(tp), "cp": str(cp), "dp": str(dp)}
    return dp


def _read_batch(reading: _Reading, dp: int | None) -> None:
    batch = reading.count("scheduler_config", "batch_size")
    if batch is None or dp is None:
        return
    if batch % dp:
        reading.refuse(
            f"scheduler_config.batch_size: {batch} does not divide by the {dp} data parallel ranks"
        )
        return
    _set(reading, "max_batch", "scheduler_config.batch_size", batch // dp)


def _text(value: object) -> str:
    """A scalar as it would stand on a command line. ValueError, with the end of a sentence, for anything else."""
    if isinstance(value, Mapping | list | tuple | set):
        raise ValueError(f"{_shown(value)} must be one value")
    return "" if value is None else str(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
