"""vLLM's hybrid KV cache manager: whether both sides run it, which decides how their caches lie. Pure.

Beside a KV connector it is off unless the flag says otherwise. From the version below on, models with chunked local
attention turn it off as well unless a variable allows it, so flags alone do not decide.
"""

from __future__ import annotations

from typing import Final

from pdcore.group.effective import EffectiveRole
from pdcore.group.modes.versions import is_at_least
from pdcore.group.spec import ExtendedKvCache
from pdcore.group.validation.comparison import Comparison, Verdict
from pdcore.group.validation.subject import Subject, path_of

SINCE: Final = ">=0.27.1"
ALLOW_CHUNKS: Final = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"

_DISABLE: Final = "disable-hybrid-kv-cache-manager"
_NAMES: Final = (_DISABLE, f"no-{_DISABLE}")
_FACTOR: Final = "hybrid KV cache manager"
_CODE: Final = "pairing_hybrid_kv_cache"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


def is_true(value: str | None) -> bool:
    """Whether a variable is switched on."""
    return value is not None and value.strip().lower() in _TRUE


def is_settled_by_environment(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> bool:
    """Whether both engines are new enough for their effective behaviour to be compared instead of their flags."""
    return bool(subject.mode.injects) and all(
        is_at_least(role.backend_version, SINCE) for role in (prefill, decode)
    )


def compare_flags(prefill: EffectiveRole, decode: EffectiveRole, path: str) -> Comparison:
    """The last such flag of both."""
    sides = [_is_on(role) for role in (prefill, decode)]
    return _comparison("agree" if sides[0] == sides[1] else "differ", sides, path)


def compare_effective(
    subject: Subject, prefill: EffectiveRole, decode: EffectiveRole, path: str
) -> Comparison:
    """What the flags, the model and the variable make of it; unknown with speculation or a further cache."""
    sides = [_is_on(role) for role in (prefill, decode)]
    if any(_changes_layers(role) for role in (prefill, decode)):
        verdict: Verdict = "agree" if _same_inputs(prefill, decode) else "undecidable"
        return _comparison(verdict, sides, path, "speculative decoding or a further cache changes it")
    allowed = [is_true((role.env or {}).get(ALLOW_CHUNKS)) for role in (prefill, decode)]
    if sides == [False, False] or allowed[0] == allowed[1]:
        return _comparison("agree" if sides[0] == sides[1] else "differ", sides, path)
    if subject.shared_model is None:
        return _comparison(
            "undecidable", sides, path, f"{ALLOW_CHUNKS} differs, and the model cannot be read here"
        )
    if subject.shared_model.has_chunks:
        sides = [on and allow for on, allow in zip(sides, allowed, strict=True)]
    return _comparison("agree" if sides[0] == sides[1] else "differ", sides, path)


def path_of_variable(role: EffectiveRole, variable: str) -> str:
    """Where the role's variable was written."""
    return f"{path_of(role, 'env')}.{variable}"


def _is_on(role: EffectiveRole) -> bool:
    flag = role.flags.last(_NAMES)
    if flag is None:
        return False
    disables = flag.value is None or is_true(flag.value)
    return disables if flag.name.startswith("no-") else not disables


def _changes_layers(role: EffectiveRole) -> bool:
    return bool(role.speculative_config) or role.extended_kv_cache not in (None, ExtendedKvCache())


def _same_inputs(prefill: EffectiveRole, decode: EffectiveRole) -> bool:
    return all(
        getattr(prefill, name) == getattr(decode, name)
        for name in ("backend_parameters", "env", "speculative_config", "extended_kv_cache")
    )


def _comparison(verdict: Verdict, sides: list[bool], path: str, why: str = "") -> Comparison:
    said = ["on" if side else "off" for side in sides]
    return Comparison(
        factor=_FACTOR,
        code=_CODE,
        verdict=verdict,
        prefill=said[0],
        decode=said[1],
        path=path,
        why=why or "their caches would lie differently",
        remedy="give both the same --disable-hybrid-kv-cache-manager or --no-disable-hybrid-kv-cache-manager",
    )
