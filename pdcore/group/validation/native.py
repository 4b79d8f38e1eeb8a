"""Whether pdcore's own engines take the flags they are given and fit each other, by the rules that routers pick by. Pure.

An instance record is made of what each side would register, and :mod:`pdcore.topology.compat` judges the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdcore.config.engine import ENGINE
from pdcore.group.effective import EffectiveRole
from pdcore.group.finding import Finding
from pdcore.group.model_config import ModelConfig
from pdcore.group.validation import taken
from pdcore.group.validation.subject import Subject, path_of
from pdcore.topology.compat import check_pair
from pdcore.topology.records import Compat, InstanceRecord, Json

_ALONE: Final = ("nnodes", "node_rank", "leader", "advertise_ip", "kv_ifname")
"""A member is on one machine, at the address that its launcher gives it; what would say otherwise."""
OWNED: Final = frozenset(
    {
        *("role", "instance_id", "store", "cluster", "model", "model_name", "host", "port", "bootstrap_port"),
        *("take_over", "config", "group", "generation"),
        *_ALONE,
    }
)
"""Settings of an engine that follow from the group and its launcher."""

_SETTINGS: Final = {setting.name: setting for setting in ENGINE}
_BY_FLAG: Final = {flag.lstrip("-"): setting for setting in ENGINE for flag in setting.flags}
_ENGINES_OF_AUTO: Final = ("shm", "tcp")
_CODES: Final[Mapping[str, str]] = {
    "context_length": "pairing_context_length",
    "kv_dtype": "pairing_kv_dtype",
    "block_sizes": "pairing_block_size",
    "tp_size": "pairing_tp",
    "cp_size": "pairing_cp",
    "transfer_engines": "pairing_transfer_engine",
}
_FLAG_OF: Final[Mapping[str, str]] = {
    "context_length": "max_model_len",
    "kv_dtype": "dtype",
    "block_sizes": "block_size",
    "tp_size": "tp",
    "cp_size": "cp",
    "transfer_engines": "transfer_engine",
}


def findings(subject: Subject) -> Iterator[Finding]:
    """Every reason against native engines; nothing for others."""
    if not subject.is_native:
        return
    wrong = [finding for role in subject.engines for finding in _flags(role)]
    yield from wrong
    yield from _too_long(subject)
    yield from _uneven(subject)
    if subject.pair is not None:
        yield from _pair(subject, *subject.pair)


def settings_of(role: EffectiveRole) -> Mapping[str, Any]:
    """What each setting of a native engine is: its last flag, else its variable, else the default."""
    return {name: _value(role, name) for name in _SETTINGS}


def _value(role: EffectiveRole, name: str) -> Any:
    setting = _SETTINGS[name]
    flags = [flag.lstrip("-") for flag in setting.flags]
    env = role.env or {}
    raw = role.flags.value(flags)
    for variable in setting.variables:
        raw = raw if raw is not None else env.get(variable)
    for text in (raw, setting.default):
        try:
            if text is not None:
                return setting.parse(text)
        except ValueError:  # reported by _flags; what follows is judged by the default
            continue
    return None


def _flags(role: EffectiveRole) -> Iterator[Finding]:
    """What the engine would refuse at its start."""
    yield from taken.refused_variables(
        "engine", role.env or {}, ENGINE, path=path_of(role, "env"), role=role.name
    )
    for variable in (
        one for name in _ALONE for one in _SETTINGS[name].variables if (role.env or {}).get(one)
    ):
        yield Finding(
            code="engine_flag_owned",
            path=f"{path_of(role, 'env')}.{variable}",
            message=f"{variable} is settled for every member",
            remedy="remove it",
            values={"role": role.name, "variable": variable},
        )
    place = path_of(role, "backend_parameters")
    for flag in dict.fromkeys(role.flags.flags):
        setting = _BY_FLAG.get(flag.name)
        if setting is None or setting.secret:
            yield taken.unknown(
                "engine", flag, _SETTINGS, code="engine_flag_unknown", path=place, role=role.name
            )
        elif setting.name in OWNED:
            yield Finding(
                code="engine_flag_owned",
                path=place,
                message=f"--{flag.name} is set for every member",
                remedy="remove it",
                values={"role": role.name, "flag": f"--{flag.name}", "given": flag.value},
            )
        else:
            yield from taken.refused(
                "engine", flag, setting, code="engine_flag_refused", path=place, role=role.name
            )


def _too_long(subject: Subject) -> Iterator[Finding]:
    longest = None if subject.model is None else subject.model.positions
    for role in subject.engines:
        asked = settings_of(role)["max_model_len"]
        if asked is not None and longest is not None and asked > longest:
            yield Finding(
                code="context_too_long",
                path=_place("context_length", role, role),
                message=f"{role.name} asks for a context of {asked} tokens, the model has {longest} positions",
                remedy=f"write at most {longest}",
                values={"role": role.name, "given": asked, "model": longest},
            )


def _uneven(subject: Subject) -> Iterator[Finding]:
    """What the ranks of one member cannot share; KV heads are judged with the pair."""
    for role in subject.engines:
        tp = settings_of(role)["tp"]
        shared = {} if subject.model is None else subject.model.shared_evenly
        for name, count in shared.items():
            if count % tp:
                yield Finding(
                    code="tp_does_not_divide",
                    path=_place("tp_size", role, role),
                    message=f"{role.name} has {tp} ranks, of which {name} {count} of the model is no multiple",
                    remedy=f"write a --tp that divides {' and '.join(map(str, shared.values()))}",
                    values={"role": role.name, "tp": tp, name: count},
                )


def _pair(subject: Subject, prefill: EffectiveRole, decode: EffectiveRole) -> Iterator[Finding]:
    said = [settings_of(role)["max_model_len"] for role in (prefill, decode)]
    known = None if subject.model is None else subject.model.positions
    lengths = [length or known or other or 0 for length, other in (said, said[::-1])]
    records = [
        _record(subject, role, length) for role, length in zip((prefill, decode), lengths, strict=True)
    ]
    for reason in check_pair(records[0], records[1]):
        field, _, sentence = reason.partition(": ")
        yield Finding(
            code=_CODES.get(field, f"pairing_{field}"),
            path=_blamed(field, sentence, prefill, decode),
            message=f"{field}: {sentence}",
            remedy=_remedy(field, sentence, subject.model),
            values={
                "factor": field,
                "prefill": _shown(records[0], field),
                "decode": _shown(records[1], field),
            },
        )


def _remedy(field: str, sentence: str, model: ModelConfig | None) -> str:
    """What to do about ``field``, of which ``sentence`` says what is wrong."""
    flag = f"--{_FLAG_OF.get(field, field).replace('_', '-')}"
    heads = None if model is None else model.kv_heads
    if field == "cp_size":
        return f"remove {flag} from decode; only prefill can split prompts"
    if field == "tp_size" and "KV heads" in sentence and heads:
        fitting = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        return f"write {flag} as one of {fitting}, or as a multiple of {heads}"
    if field == "tp_size":
        return f"give both the same {flag}, or sizes of which one divides the other"
    return f"give both the same {flag}"


def _blamed(field: str, sentence: str, prefill: EffectiveRole, decode: EffectiveRole) -> str:
    """Where what is wrong was written: on the one side that ``sentence`` is about, if it is about one."""
    if field == "cp_size":
        return _place(field, decode, decode)
    if "KV heads" in sentence:
        alone = prefill if sentence.startswith("prefill") else decode
        return _place(field, alone, alone)
    return _place(field, prefill, decode)


def _place(field: str, prefill: EffectiveRole, decode: EffectiveRole) -> str:
    """Where the flag or variable was written, decode's where both have one."""
    setting = _SETTINGS.get(_FLAG_OF.get(field, field))
    flags = [] if setting is None else [flag.lstrip("-") for flag in setting.flags]
    for role in (decode, prefill):
        if role.flags.last(flags) is not None:
            return path_of(role, "backend_parameters")
    for role in (decode, prefill):
        if setting is not None and any(variable in (role.env or {}) for variable in setting.variables):
            return path_of(role, "env")
    return path_of(decode, "backend_parameters")


def _record(subject: Subject, role: EffectiveRole, context_length: int) -> InstanceRecord:
    settings = settings_of(role)
    compat = _compat(settings, subject.model, context_length)
    return InstanceRecord(
        incarnation="",
        role="prefill" if role.name == "prefill" else "decode",
        group=subject.spec.name,
        generation=1,
        models=(subject.spec.served_name,),
        url="",
        bootstrap_host=None,
        bootstrap_port=None,
        protocol=subject.mode.router_protocol or "",
        dp_size=settings["dp"],
        cp_size=settings["cp"],
        tp_size=settings["tp"],
        pp_size=1,
        compat=compat,
        kv_tokens=settings["kv_tokens"],
        block_size=settings["block_size"],
        machine="",
        boot_id="one",
        pid=0,
        state="serving",
    )


def _compat(settings: Mapping[str, Any], model: ModelConfig | None, context_length: int) -> Compat:
    """What it would register, as far as flags decide: the rest follows from the one model and is the same for both."""
    mla = model is not None and model.is_mla
    chosen = settings["transfer_engine"]
    return Compat(
        model_fingerprint="",
        context_length=context_length,
        kv_dtype=settings["dtype"],
        block_sizes=(settings["block_size"],),
        kv_layout="",
        attention="mla" if mla else "gqa" if model is not None and model.kv_heads else "",
        layers=0,
        kv_heads=0 if model is None or mla else model.kv_heads or 0,
        head_dim=0,
        transfer_engines=_ENGINES_OF_AUTO if chosen == "auto" else (chosen,),
        wire=0,
        layout=0,
    )


def _shown(record: InstanceRecord, field: str) -> Json:
    value = (
        getattr(record.compat, field, None) if hasattr(record.compat, field) else getattr(record, field, None)
    )
    return list(value) if isinstance(value, tuple) else value
