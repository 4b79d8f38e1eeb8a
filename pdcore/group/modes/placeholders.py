"""``{{name}}`` in what a mode or a person writes: found, replaced, and what it means when nobody could. Pure.

A name is words with dots between, without blanks: ``{{ports.bootstrap}}``. What is written otherwise is no placeholder and
stays as it is, so that templates of other programs pass. A value that is one placeholder and nothing else gets the fact as
it is, a number as a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from pdcore.errors import ConfigError
from pdcore.topology.records import Json

Fact = str | int
Facts = Mapping[str, Fact]

_WORD: Final = r"[A-Za-z_][A-Za-z0-9_-]*"
_NAME: Final = re.compile(rf"\{{\{{({_WORD}(?:\.{_WORD})*)\}}\}}")
_ANY: Final = re.compile(r"\{\{.*?\}\}|\{\{|\}\}")

_CAUSES: Final[tuple[tuple[str, str], ...]] = (
    ("port", "no port was assigned to this member"),
    ("ports", "the mode or the role has no port band of that name, or it was not assigned"),
    ("peer.ports", "the peer has no port band of that name, or it was not assigned"),
    ("peer", "there is no member of that role to name"),
    (
        "net_device",
        "the interface for KV could not be derived; name it with --kv-transfer-ifname / PDCORE_KV_TRANSFER_IFNAME",
    ),
    (
        "roles",
        "the role never declared its parallelism, and it cannot be told from its cards; "
        "write --tensor-parallel-size and --data-parallel-size among its backend_parameters",
    ),
    ("cache", "the KV cache does not say that; write it in extended_kv_cache"),
    ("ascend_connector", "the generation does not say which connector the model needs"),
    ("worker_ip", "the address of the member's machine is not known before it is started"),
    ("instance_id", "a member has a name only when it is started"),
    ("router.protocol", "a native router of a custom group must be told which protocol the engines speak"),
)
"""Why a name may be missing, by how it begins; the first that fits counts."""


_LATER: Final = frozenset(
    "port ports peer worker_ip net_device instance_id run_dir group_id generation store cluster python".split()
)
"""The heads of names that are known only when a member gets its place."""


class Unresolved(ConfigError):
    """Something cannot be launched: each placeholder that is left, where it stands and why."""


def names_in(value: Json) -> Iterator[str]:
    """Every placeholder's name in texts at any depth, in order."""
    for text in _texts(value):
        yield from _NAME.findall(text)


def malformed_in(value: Json) -> Iterator[str]:
    """What has double braces and is no placeholder."""
    for text in _texts(value):
        yield from (found for found in _ANY.findall(text) if _NAME.fullmatch(found) is None)


def substituted(value: Json, facts: Facts) -> Json:
    """``value`` with every known placeholder replaced, at any depth and in keys' values; unknown ones stay."""
    if isinstance(value, str):
        return _in_text(value, facts)
    if isinstance(value, list | tuple):
        return [substituted(item, facts) for item in value]
    if isinstance(value, Mapping):
        return {key: substituted(item, facts) for key, item in value.items()}
    return value


def in_text(text: str, facts: Facts) -> str:
    """The same for one text, which stays one."""
    return str(_in_text(text, facts))


def cause_of(name: str) -> str:
    """Why nobody could say what ``name`` is."""
    for begin, cause in _CAUSES:
        if name == begin or name.startswith(f"{begin}."):
            return cause
    return "there is no such placeholder"


def is_settled_later(name: str) -> bool:
    """Whether nobody can know what ``name`` is before a member has its place."""
    return name.partition(".")[0] in _LATER


def _in_text(text: str, facts: Facts) -> Fact:
    alone = _NAME.fullmatch(text)
    if alone is not None:
        return facts.get(alone[1], text)
    return _NAME.sub(lambda found: str(facts.get(found[1], found[0])), text)


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
