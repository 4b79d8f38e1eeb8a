"""Whether what vLLM reads from its environment makes a pair, in every mode of vLLM. Pure.

A role's ``env`` that is null is the group's; a mapping, even an empty one, replaces it. What depends on the model is decided
from its config with the role's flags on top, and stays unverified where that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pdcore.group.connectors import BadConnector, written_connector
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.model_config import ModelConfig
from pdcore.group.modes.versions import is_at_least
from pdcore.group.spec import ModeName
from pdcore.group.validation.comparison import Comparison, Verdict
from pdcore.group.validation.hybrid_cache import (
    SINCE,
    compare_effective,
    is_settled_by_environment,
    is_true,
    path_of_variable,
)
from pdcore.group.validation.pairing import place
from pdcore.group.validation.subject import Subject, path_of
from pdcore.topology.records import Json

LAYOUT: Final = "VLLM_KV_CACHE_LAYOUT"
MLA_DISABLE: Final = "VLLM_MLA_DISABLE"
SSM_LAYOUT: Final = "VLLM_SSM_CONV_STATE_LAYOUT"
BATCH_INVARIANT: Final = "VLLM_BATCH_INVARIANT"
ATTENTION_BACKEND: Final = ("attention-backend",)

CONNECTORS: Final[Mapping[ModeName, frozenset[str]]] = {
    "vllm-nixl": frozenset({"NixlConnector"}),
    "vllm-mooncake": frozenset({"MooncakeConnector"}),
    "vllm-ascend-mooncake": frozenset({"MooncakeConnectorV1", "MooncakeHybridConnector"}),
}
"""The connectors whose rules these are, by mode; about another one that a user wrote nothing is known."""

_LAYOUTS: Final[Mapping[str, str]] = {
    "NHD": "LBNHC",
    "HND": "LBHNC",
    **{name: name for name in ("LBNHC", "LBHNC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")},
}
_ATTENTION_BACKENDS: Final = frozenset(
    {
        *("FLASH_ATTN", "FLASH_ATTN_VLLM_V1", "FLASHINFER", "TRITON_ATTN", "TRITON_ATTN_VLLM_V1"),
        *("FLEX_ATTENTION", "TREE_ATTN", "XFORMERS", "TORCH_SDPA", "CPU_ATTN", "ASCEND", "ROCM_ATTN"),
        *("ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "FLASHMLA", "FLASHMLA_SPARSE", "FLASHINFER_MLA"),
        *("FLASH_ATTN_MLA", "CUTLASS_MLA", "TRITON_MLA", "ROCM_AITER_MLA"),
    }
)


def findings(subject: Subject) -> Iterator[Finding]:
    """Every difference between what the environments of prefill and decode make of them, and what nobody can tell."""
    pair, expected = subject.pair, CONNECTORS.get(subject.mode.name)
    if pair is None or expected is None or any(role.backend != "vllm" for role in pair):
        return
    try:
        written = [written_connector(role.flags) for role in pair]
    except BadConnector:
        return  # which is refused by itself
    foreign = any(not _is_of(connector, expected) for connector in written)
    if foreign:
        yield from _unknown_connector(subject, written).findings()
    for comparison in _comparisons(subject, *pair, [connector or {} for connector in written]):
        if comparison.verdict == "differ" and foreign:
            comparison = _undecided(comparison, "another connector than the mode's is configured")
        yield from comparison.findings()


def _is_of(written: Mapping[str, Json] | None, expected: frozenset[str]) -> bool:
    if written is None:
        return True
    return written.get("kv_connector") in expected and not written.get("kv_connector_module_path")


def _unknown_connector(subject: Subject, written: Sequence[Mapping[str, Json] | None]) -> Comparison:
    said = [None if one is None else one.get("kv_connector") for one in written]
    assert subject.pair is not None
    return Comparison(
        factor="connector",
        code="pairing_unverified",
        verdict="undecidable",
        prefill=said[0],
        decode=said[1],
        path=place(*subject.pair),
        why=f"it is not the one of mode {subject.mode.name}, so nobody here knows what it needs",
        remedy="remove --kv-transfer-config, or compare the engines' environments yourself",
    )


def _comparisons(
    subject: Subject, prefill: EffectiveRole, decode: EffectiveRole, connectors: Sequence[Mapping[str, Json]]
) -> Iterator[Comparison]:
    yield _layout(subject, prefill, decode, connectors)
    yield _mla(subject, prefill, decode)
    yield _ssm(subject, prefill, decode)
    if is_settled_by_environment(subject, prefill, decode):
        yield compare_effective(subject, prefill, decode, place(prefill, decode))
    yield _attention(prefill, decode, connectors)


def _layout(
    subject: Subject, prefill: EffectiveRole, decode: EffectiveRole, connectors: Sequence[Mapping[str, Json]]
) -> Comparison:
    model = subject.shared_model
    said = [_variable(role, LAYOUT) for role in (prefill, decode)]
    known = [None if text is None else _LAYOUTS.get(text.upper()) for text in said]
    verdict: Verdict = "differ"
    why = "KV would be read in another order than it was written"
    if said[0] == said[1] or (known[0] is not None and known[0] == known[1]):
        verdict = "agree"
    elif model is None:
        verdict, why = "undecidable", "whether it matters depends on the model, which cannot be read here"
    elif _latents_on_both(model, prefill, decode) or _permutes(subject, prefill, decode, known, connectors):
        verdict = "agree"
    elif any(_option(connector, "kv_buffer_device") == "cpu" for connector in connectors):
        verdict, why = "undecidable", "KV passes through a buffer on the CPU"
    elif None in known:
        verdict, why = "undecidable", "the engine chooses what is not written, or does not know what is"
    return _about(LAYOUT, "KV cache layout", "pairing_kv_layout", verdict, said, (prefill, decode), why)


def _latents_on_both(model: ModelConfig, prefill: EffectiveRole, decode: EffectiveRole) -> bool:
    """Latents have no heads whose order could differ."""
    return model.is_mla and not any(is_true(_variable(role, MLA_DISABLE)) for role in (prefill, decode))


def _permutes(
    subject: Subject,
    prefill: EffectiveRole,
    decode: EffectiveRole,
    known: Sequence[str | None],
    connectors: Sequence[Mapping[str, Json]],
) -> bool:
    """Whether decode turns what it gets: only NIXL can, only in one direction and for uniform caches."""
    model = subject.shared_model
    assert model is not None
    uniform = not (model.is_recurrent or model.has_windows)
    one_way = known[0] == "LBHNC" and known[1] == "LBNHC"
    told = _option(connectors[1], "enable_permute_local_kv") is True
    hybrid = any(role.flags.last(("no-disable-hybrid-kv-cache-manager",)) for role in (prefill, decode))
    return subject.mode.name == "vllm-nixl" and one_way and told and uniform and not hybrid


def _mla(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Comparison:
    model = subject.shared_model
    said = [_variable(role, MLA_DISABLE) for role in (prefill, decode)]
    verdict: Verdict = "differ"
    why = "one side would keep latents, the other keys and values"
    if is_true(said[0]) == is_true(said[1]):
        verdict = "agree"
    elif model is None:
        verdict, why = "undecidable", "whether the model has latents cannot be read here"
    elif not model.is_mla:
        verdict = "agree"
    return _about(MLA_DISABLE, "MLA", "pairing_mla", verdict, said, (prefill, decode), why)


def _ssm(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Comparison:
    said = [_variable(role, SSM_LAYOUT) for role in (prefill, decode)]
    states = [None if text is None else text.strip().upper() for text in said]
    verdict: Verdict = "undecidable"
    why = "what the engine does with recurrent states is not known"
    model = subject.shared_model
    if states == ["DS", "DS"] or (model is None and states == [None, None]):
        verdict = "agree"
    elif model is not None and not model.is_recurrent:
        verdict = "agree"
    elif model is not None and _cannot_move(subject, states, prefill, decode):
        verdict, why = "differ", "recurrent states can be handed over as DS only"
    return _about(
        SSM_LAYOUT,
        "SSM state layout",
        "pairing_ssm_layout",
        verdict,
        said,
        (prefill, decode),
        why,
        remedy=f"write {SSM_LAYOUT}: DS for both roles",
    )


def _cannot_move(
    subject: Subject, states: Sequence[str | None], prefill: EffectiveRole, decode: EffectiveRole
) -> bool:
    """NIXL moves DS and nothing else; of other connectors only that both sides must have the same is known."""
    new = all(is_at_least(role.backend_version, SINCE) for role in (prefill, decode))
    wrong = "SD" in states if subject.mode.name == "vllm-nixl" else set(states) == {"SD", "DS"}
    return new and wrong


def _attention(
    prefill: EffectiveRole, decode: EffectiveRole, connectors: Sequence[Mapping[str, Json]]
) -> Comparison:
    said = [role.flags.value(ATTENTION_BACKEND) for role in (prefill, decode)]
    known = [None if text is None else text.upper() for text in said]
    invariant = [_variable(role, BATCH_INVARIANT) for role in (prefill, decode)]
    verdict: Verdict = "differ"
    why = "their caches would lie differently"
    if known[0] == known[1]:
        verdict = "agree"
        if known[0] is None and is_true(invariant[0]) != is_true(invariant[1]):
            return _about(
                BATCH_INVARIANT,
                "attention backend",
                "pairing_attention_backend",
                "undecidable",
                invariant,
                (prefill, decode),
                f"{BATCH_INVARIANT} makes the engine choose one",
            )
    elif any(_option(connector, "enforce_handshake_compat") is False for connector in connectors):
        verdict, why = "undecidable", "enforce_handshake_compat is false, so the engine compares nothing"
    elif any(name not in _ATTENTION_BACKENDS for name in known):
        verdict, why = "undecidable", "the engine chooses what is not written, or does not know what is"
    return Comparison(
        factor="attention backend",
        code="pairing_attention_backend",
        verdict=verdict,
        prefill=said[0],
        decode=said[1],
        path=place(prefill, decode),
        why=why,
    )


def _about(
    variable: str,
    factor: str,
    code: str,
    verdict: Verdict,
    said: Sequence[str | None],
    pair: tuple[EffectiveRole, EffectiveRole],
    why: str,
    *,
    remedy: str = "",
) -> Comparison:
    prefill, decode = pair
    written = decode if path_of(decode, "env") != "env" or prefill.env is None else prefill
    return Comparison(
        factor=f"{factor} ({variable})",
        code=code,
        verdict=verdict,
        prefill=said[0],
        decode=said[1],
        path=path_of_variable(written, variable),
        why=why,
        remedy=remedy,
    )


def _undecided(comparison: Comparison, why: str) -> Comparison:
    return Comparison(
        factor=comparison.factor,
        code=comparison.code,
        verdict="undecidable",
        prefill=comparison.prefill,
        decode=comparison.decode,
        path=comparison.path,
        why=why,
    )


def _variable(role: EffectiveRole, name: str) -> str | None:
    return (role.env or {}).get(name)


def _option(connector: Mapping[str, Json], name: str) -> Json:
    """An option of a connector, at its top or among its extras."""
    extra = connector.get("kv_connector_extra_config")
    within = extra.get(name) if isinstance(extra, dict) else None
    return connector[name] if name in connector else within
