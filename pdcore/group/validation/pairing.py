"""Whether what prefill and decode are told makes a pair: the flags of engines that do not check it themselves. Pure.

Engines let most of these differences pass, and answer wrongly or fail late. What one side leaves to a default is resolved
from the model's config where that can be read, else it stays unverified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pdcore.config.sizes import tokens
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.flags import Flags
from pdcore.group.validation.comparison import Comparison, Verdict
from pdcore.group.validation.hybrid_cache import compare_flags, is_settled_by_environment
from pdcore.group.validation.subject import Subject, path_of

CONTEXT_LENGTH: Final = ("max-model-len", "context-length")
DTYPE: Final = ("dtype",)
KV_DTYPE: Final = ("kv-cache-dtype",)
BLOCK_SIZE: Final = ("block-size", "page-size")
KV_LAYOUT: Final = ("kv-cache-layout",)

_ALIASES: Final[Mapping[str, str]] = {
    "half": "float16",
    "float": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
_AUTO: Final = "auto"


def findings(subject: Subject) -> Iterator[Finding]:
    """Every difference between prefill and decode, and what could not be compared."""
    if subject.pair is None or subject.is_native:
        return
    for compare in _FACTORS:
        for comparison in compare(subject, *subject.pair):
            yield from comparison.findings()


def place(prefill: EffectiveRole, decode: EffectiveRole) -> str:
    """Where a difference in flags was written: a role's own place, decode's where both have one."""
    for role in (decode, prefill):
        if role.sources.get("backend_parameters") == "user":
            return path_of(role, "backend_parameters")
    return path_of(decode, "backend_parameters")


def _context(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Comparison]:
    said = [role.flags.value(CONTEXT_LENGTH) for role in (prefill, decode)]
    models = [subject.model_of(role) for role in (prefill, decode)]
    lengths = [
        (None if model is None else model.context_length) if text is None else _length(text)
        for text, model in zip(said, models, strict=True)
    ]
    if said[0] == said[1] and (said[0] is not None or lengths[0] == lengths[1]):
        verdict: Verdict = "agree"
    elif None in lengths:
        verdict = "undecidable"
    else:
        verdict = "agree" if lengths[0] == lengths[1] else "differ"
    yield Comparison(
        factor="context length",
        code="pairing_context_length",
        verdict=verdict,
        prefill=_shown_length(said[0], lengths[0]),
        decode=_shown_length(said[1], lengths[1]),
        path=place(prefill, decode),
        why=(
            "no engine checks it, and it shows with the first long prompt"
            if verdict == "differ"
            else "what is not written follows from a config that cannot be read here"
        ),
    )


def _length(text: str) -> int | None:
    try:
        return tokens(text)
    except ValueError:
        return None


def _shown_length(said: str | None, length: int | None) -> str | None:
    if said is None:
        return None if length is None else f"{length} (the model's)"
    return said if length is None or said == str(length) else f"{said} ({length})"


def _dtype(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Comparison]:
    models = [subject.model_of(role) for role in (prefill, decode)]
    model = [None if one is None else one.dtype for one in models]
    said = [_folded(role.flags.value(DTYPE)) for role in (prefill, decode)]
    yield _concrete("dtype", "pairing_dtype", said, model, place(prefill, decode))
    computing = [auto if dtype == _AUTO else dtype for dtype, auto in zip(said, model, strict=True)]
    kv = [_folded(role.flags.value(KV_DTYPE)) for role in (prefill, decode)]
    yield _concrete("KV cache dtype", "pairing_kv_dtype", kv, computing, place(prefill, decode))


def _concrete(
    factor: str, code: str, said: Sequence[str], automatic: Sequence[str | None], path: str
) -> Comparison:
    """``automatic`` is what ``auto`` stands for on either side, None where nobody knows."""
    resolved = [auto if text == _AUTO else text for text, auto in zip(said, automatic, strict=True)]
    verdict: Verdict = "undecidable"
    if resolved[0] == resolved[1]:
        verdict = "agree"
    elif None not in resolved:
        verdict = "differ"
    shown = [
        text if text == value or value is None else f"{text} ({value})"
        for text, value in zip(said, resolved, strict=True)
    ]
    return Comparison(
        factor=factor,
        code=code,
        verdict=verdict,
        prefill=shown[0],
        decode=shown[1],
        path=path,
        why="" if verdict == "differ" else "auto follows the model's config, which cannot be read here",
    )


def _folded(value: str | None) -> str:
    text = (value or _AUTO).lower()
    return _ALIASES.get(text, text)


def _written(
    factor: str, code: str, names: Sequence[str]
) -> Callable[[Subject, EffectiveRole, EffectiveRole], Iterator[Comparison]]:
    """Compares what both wrote; what one alone wrote is unverified."""

    def compare(_: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Comparison]:
        said = [_lower(role.flags, names) for role in (prefill, decode)]
        verdict: Verdict = "agree"
        if said[0] != said[1]:
            verdict = "undecidable" if None in said else "differ"
        yield Comparison(
            factor=factor,
            code=code,
            verdict=verdict,
            prefill=said[0],
            decode=said[1],
            path=place(prefill, decode),
            why="" if verdict == "differ" else "the engine chooses what is not written",
        )

    return compare


def _lower(flags: Flags, names: Sequence[str]) -> str | None:
    value = flags.value(names)
    return None if value is None else value.lower()


def _hybrid(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Comparison]:
    if prefill.backend == decode.backend == "vllm" and not is_settled_by_environment(
        subject, prefill, decode
    ):
        yield compare_flags(prefill, decode, place(prefill, decode))


_FACTORS: Final = (
    _context,
    _dtype,
    _written("block size", "pairing_block_size", BLOCK_SIZE),
    _written("KV cache layout", "pairing_kv_layout", KV_LAYOUT),
    _hybrid,
)
