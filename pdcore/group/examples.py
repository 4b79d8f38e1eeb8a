"""A first spec for each mode, with every other field as a comment. Pure.

Comments are what the types say about their fields, so they cannot go out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from pdcore.group.kinds import Record, declared
from pdcore.group.spec import (
    Disaggregation,
    GroupSpec,
    ModeName,
    Network,
    Overridable,
    RoleSpec,
)

_MODEL: Final = "Qwen/Qwen3-8B"
_VLLM: Final = ("--max-model-len=32768", "--dtype=bfloat16", "--tensor-parallel-size=1")
_SGLANG: Final = ("--context-length=32768", "--dtype=bfloat16", "--tp-size=1")
_NIXL: Final = '--kv-transfer-config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    """What differs between modes: ``shared`` is every engine's, the others are one role's own."""

    about: str
    shared: tuple[str, ...]
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    version: str | None = None
    backend: str | None = None
    router: Mapping[str, str] | None = None


_EXAMPLES: Final[Mapping[ModeName, _Example]] = {
    "pdcore": _Example(
        about="pdcore's own engines, which find each other in the keyspace",
        shared=("--max-model-len=2048", "--dtype=float32"),
        prefill=("--max-prefill-tokens=512",),
        decode=("--max-batch=64",),
    ),
    "vllm-nixl": _Example(
        about="vLLM on NVIDIA, KV through NIXL",
        version="0.27.1",
        shared=_VLLM,
        prefill=("--max-num-batched-tokens=16384",),
        decode=("--max-num-seqs=256",),
    ),
    "vllm-mooncake": _Example(
        about="vLLM on NVIDIA, KV through Mooncake",
        version="0.27.1",
        shared=_VLLM,
        prefill=("--max-num-batched-tokens=16384",),
        decode=("--max-num-seqs=256",),
    ),
    "sglang-mooncake": _Example(
        about="SGLang on NVIDIA, KV through Mooncake",
        version="0.5.7",
        shared=_SGLANG,
        prefill=("--chunked-prefill-size=16384",),
        decode=("--max-running-requests=256",),
    ),
    "sglang-nixl": _Example(
        about="SGLang on NVIDIA, KV through NIXL",
        version="0.5.7",
        shared=_SGLANG,
        prefill=("--chunked-prefill-size=16384",),
        decode=("--max-running-requests=256",),
    ),
    "vllm-ascend-mooncake": _Example(
        about="vLLM-Ascend, KV through Mooncake",
        version="0.23.0",
        shared=_VLLM,
        prefill=("--max-num-batched-tokens=16384",),
        decode=("--max-num-seqs=256",),
    ),
    "custom": _Example(
        about="engines, connector and ports are what is written here; nothing is added",
        backend="vllm",
        version="0.27.1",
        shared=(*_VLLM, _NIXL),
        prefill=("--max-num-batched-tokens=16384",),
        decode=("--max-num-seqs=256",),
        router={"protocol": "nixl"},
    ),
}


def example(mode: ModeName, model: str | None = None) -> str:
    """The YAML of a 2P1D group in ``mode``, for ``model``."""
    given = _EXAMPLES[mode]
    lines = [
        f"# Mode {mode}: {given.about}.",
        "# pdcore group check says what is wrong with it, pdcore group show what would run.",
        "# A field that is null or missing is inherited or has its default; a list or mapping replaces the whole one.",
        "name: chat",
        f"model: {json.dumps(model or _MODEL)}  # {_help(GroupSpec, 'model')}",
        *_comments(GroupSpec, ("model_name", "description", "restart_on_error"), ""),
        "",
        "disaggregation:",
        f"  mode: {mode}",
        *_comments(Disaggregation, ("vendor", "readiness", "kv_load_failure_policy"), "  "),
        "",
        f"# network:  # {_help(GroupSpec, 'network')}",
        *_comments(Network, tuple(one.name for one in declared(Network)), "  "),
        "",
        "# For both engines, unless a role has its own:",
        *_set("backend", given.backend),
        *_set("backend_version", given.version),
        *_list("backend_parameters", given.shared, ""),
        *_comments(GroupSpec, _unset(given), ""),
        "",
        "roles:",
        *_role("prefill", 2, given.shared + given.prefill),
        *_role("decode", 1, given.shared + given.decode),
        *_role("router", 1, (), given.router or {}),
    ]
    return "\n".join(lines) + "\n"


def _role(
    name: str, replicas: int, parameters: tuple[str, ...], own: Mapping[str, str] | None = None
) -> Iterator[str]:
    yield f"  - name: {name}"
    yield f"    replicas: {replicas}"
    for key, value in (own or {}).items():
        yield f"    {key}: {value}  # {_help(RoleSpec, key)}"
    if parameters:
        yield from _list("backend_parameters", parameters, "    ")
    if name == "router":
        yield from _comments(RoleSpec, ("resources", "dependencies", "backend_parameters"), "    ")


def _unset(given: _Example) -> tuple[str, ...]:
    written = {
        "backend_parameters",
        "backend" if given.backend else "",
        "backend_version" if given.version else "",
    }
    return tuple(one.name for one in fields(Overridable) if one.name not in written)


def _set(key: str, value: str | None) -> Iterator[str]:
    if value is not None:
        yield f'{key}: "{value}"'


def _list(key: str, words: tuple[str, ...], indent: str) -> Iterator[str]:
    yield f"{indent}{key}:"
    for word in words:
        yield f"{indent}  - {_quoted(word)}"


def _quoted(word: str) -> str:
    return word if all(c.isalnum() or c in "-=._" for c in word) else "'" + word.replace("'", "''") + "'"


def _comments(record: type, names: tuple[str, ...], indent: str) -> Iterator[str]:
    for name in names:
        one: Any = next(found for found in declared(record) if found.name == name)
        kind = one.metadata["kind"]
        default = f" {one.default}" if isinstance(one.default, str) else ""
        default = " true" if one.default is True else default
        inner = (
            f" {{{', '.join(part.name for part in declared(kind.type))}}}" if isinstance(kind, Record) else ""
        )
        yield f"{indent}# {name}:{default}  # {one.metadata['help']}{inner}"


def _help(record: type, name: str) -> str:
    return str(next(one for one in declared(record) if one.name == name).metadata["help"])
