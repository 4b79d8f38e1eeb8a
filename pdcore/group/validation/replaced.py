"""What a role lost because its own list or mapping replaces the group's: told where a finding follows from that. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.flags import TENSOR_PARALLEL, Flags
from pdcore.group.validation.pairing import BLOCK_SIZE, CONTEXT_LENGTH, DTYPE, KV_DTYPE, KV_LAYOUT
from pdcore.group.validation.subject import Subject

_BY_FACTOR: Final[Mapping[str, Sequence[str]]] = {
    "context length": CONTEXT_LENGTH,
    "context_length": CONTEXT_LENGTH,
    "dtype": DTYPE,
    "KV cache dtype": (*KV_DTYPE, *DTYPE),
    "kv_dtype": DTYPE,
    "block size": BLOCK_SIZE,
    "block_sizes": BLOCK_SIZE,
    "KV cache layout": KV_LAYOUT,
    "tensor parallel size": TENSOR_PARALLEL,
    "tp_size": TENSOR_PARALLEL,
    "transfer_engines": ("transfer-engine",),
    "attention backend": ("attention-backend",),
}
"""The flags that a finding is about, by the factor in its values."""
_VARIABLE: Final = re.compile(r"\(([A-Z][A-Z0-9_]+)\)$")


def explained(subject: Subject, finding: Finding) -> Finding:
    """``finding``, with what was replaced where it is about that."""
    factor = finding.values.get("factor")
    if not isinstance(factor, str):
        return finding
    lost = [*_flags(subject, _BY_FACTOR.get(factor, ())), *_variables(subject, factor)]
    if not lost:
        return finding
    return replace(finding, message=f"{finding.message}; {'; '.join(lost)}")


def _flags(subject: Subject, names: Sequence[str]) -> Iterator[str]:
    shared = Flags.of(subject.spec.backend_parameters).last(names)
    if shared is None:
        return
    for role in subject.engines:
        if _is_own(role, "backend_parameters") and role.flags.last(names) is None:
            value = "" if shared.value is None else f"={shared.value}"
            yield _sentence(role, "backend_parameters", f"--{shared.name}{value}")


def _variables(subject: Subject, factor: str) -> Iterator[str]:
    found = _VARIABLE.search(factor)
    shared = None if found is None else (subject.spec.env or {}).get(found[1])
    if found is None or shared is None:
        return
    for role in subject.engines:
        if _is_own(role, "env") and found[1] not in (role.env or {}):
            yield _sentence(role, "env", f"{found[1]}={shared}")


def _is_own(role: EffectiveRole, field: str) -> bool:
    return role.sources.get(field) == "user"


def _sentence(role: EffectiveRole, field: str, lost: str) -> str:
    return f"{role.name}'s own {field} replace the group's as a whole, {lost} too"
