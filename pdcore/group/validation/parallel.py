"""Whether the parallel sizes of prefill and decode can meet, and the ports that follow from them fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pdcore.group.effective import EffectiveRole, parallelism_of
from pdcore.group.finding import Finding
from pdcore.group.modes.mode import Band, EngineRole, Mode, TpRule
from pdcore.group.modes.tp_rule import is_allowed, rule_of
from pdcore.group.spec import DEFAULT_SERVICE_PORTS
from pdcore.group.validation.comparison import Comparison
from pdcore.group.validation.subject import Subject, path_of

_ROLES: Final[tuple[EngineRole, ...]] = ("prefill", "decode")


def findings(subject: Subject) -> Iterator[Finding]:
    """Every reason against the sizes; native engines' are judged with the rest of what they must agree on."""
    if subject.pair is not None and not subject.is_native:
        yield from _tensor_parallel(subject.mode, *subject.pair)
    yield from _data_parallel(subject)
    yield from _ports(subject)


def _tensor_parallel(mode: Mode, prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Finding]:
    sizes = [parallelism_of(role).tp for role in (prefill, decode)]
    if sizes == [None, None] or _never_asked(mode):
        return
    rule = rule_of(mode, (prefill.backend_version, decode.backend_version))
    if sizes[0] is None or sizes[1] is None:
        comparison = _tp(rule, prefill, decode, sizes, "one side does not say, and its cards are not pinned")
        yield from comparison.findings()
    elif not is_allowed(rule.direction, sizes[0], sizes[1]):
        unknown = [role.name for role in (prefill, decode) if role.backend_version is None]
        newer = any(is_allowed(other.direction, sizes[0], sizes[1]) for other in mode.tp_rules)
        if unknown and newer:
            why = f"it depends on the engine's version, which {' and '.join(unknown)} does not say"
            yield from _tp(rule, prefill, decode, sizes, why, remedy="write backend_version").findings()
        else:
            yield from _tp(rule, prefill, decode, sizes, "").findings()


def _never_asked(mode: Mode) -> bool:
    return all(rule.direction == "any" for rule in mode.tp_rules)


def _tp(
    rule: TpRule,
    prefill: EffectiveRole,
    decode: EffectiveRole,
    sizes: list[int | None],
    unknown: str,
    *,
    remedy: str = "",
) -> Comparison:
    wanted = {
        "decode_at_least_prefill": "decode needs at least as many ranks as prefill",
        "prefill_at_least_decode": "prefill needs at least as many ranks as decode",
        "one_divides_other": "one must divide the other",
        "any": "",
    }[rule.direction]
    own = decode if decode.sources.get("backend_parameters") == "user" else prefill
    return Comparison(
        factor="tensor parallel size",
        code="pairing_tp",
        verdict="undecidable" if unknown else "differ",
        prefill=sizes[0],
        decode=sizes[1],
        path=path_of(own, "backend_parameters"),
        why=unknown or (f"{wanted}: {rule.why}" if rule.why else wanted),
        remedy=remedy or ("" if unknown else f"change --tensor-parallel-size so that {wanted}"),
    )


def _data_parallel(subject: Subject) -> Iterator[Finding]:
    """vLLM zeroes the DP rank of models without experts, so all ranks of such an engine would take the same port."""
    if subject.mode.name != "vllm-ascend-mooncake":
        return
    for role in subject.engines:
        dp, model = parallelism_of(role).dp, subject.model_of(role)
        if dp is None or dp == 1:
            continue
        place = path_of(role, "backend_parameters")
        if model is None:
            yield Finding(
                code="ascend_dp_unverified",
                path=place,
                message=f"{role.name} has {dp} data parallel ranks, which only works for a model with experts; "
                "its config cannot be read here",
                remedy="use --data-parallel-size 1 and more replicas unless the model has experts",
                values={"role": role.name, "dp": dp},
                severity="advisory",
            )
        elif not model.is_moe:
            yield Finding(
                code="ascend_dp_without_experts",
                path=place,
                message=f"{role.name} has {dp} data parallel ranks and the model no experts: "
                "all ranks would take the same KV port",
                remedy="use --data-parallel-size 1 and more replicas",
                values={"role": role.name, "dp": dp, "experts": 0},
            )


def _ports(subject: Subject) -> Iterator[Finding]:
    written = subject.spec.network.service_port_range
    low, high = (int(port) for port in (written or DEFAULT_SERVICE_PORTS).split("-"))
    if not 1 <= low <= high <= 65535:
        yield Finding(
            code="port_range_invalid",
            path="network.service_port_range",
            message=f"{low}-{high} is no range of ports",
            remedy="write LOW-HIGH with 1 <= LOW <= HIGH <= 65535",
            values={"low": low, "high": high},
        )
        return
    size = high - low + 1
    for name in _ROLES:
        recipe, role = subject.mode.roles.get(name), subject.roles.get(name)
        if recipe is None or role is None or subject.is_native:
            continue
        widths = {band.name: _width(band, role) for band in recipe.bands}
        needed = 1 + sum(widths.values())
        if needed > size:
            parts = ", ".join(f"{width} for {band}" for band, width in widths.items())
            yield Finding(
                code="band_exceeds_range",
                path="network.service_port_range",
                message=f"one {name} needs {needed} ports (1 for HTTP, {parts}), the range {low}-{high} has {size}",
                remedy="widen service_port_range, or make the member smaller",
                values={"role": name, "needed": needed, "range": f"{low}-{high}", "ports": size},
            )


def _width(band: Band, role: EffectiveRole) -> int:
    """How many ports the band has, as far as the spec says; 1 where it does not."""
    sizes = parallelism_of(role)
    if band.width == "data_parallel":
        return sizes.dp or 1
    return (sizes.cards or 1) if band.width == "accelerators" else 1
