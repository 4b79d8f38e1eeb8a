"""Whether a prefill and a decode instance can serve one request together: every reason against, as sentences.

The only place these rules are written; registration, group checks, ``hello`` and the router's pick all ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final

from pdcore.topology.fields import shown
from pdcore.topology.records import Compat, InstanceRecord, Json

_MUST_BE_EQUAL: Final = (
    "model_fingerprint",
    "context_length",
    "kv_dtype",
    "block_sizes",
    "kv_layout",
    "attention",
    "layers",
    "kv_heads",
    "head_dim",
    "wire",
    "layout",
)
KindOf = Callable[[InstanceRecord], Hashable]

_WITHIN_ONE_BOOT: Final = frozenset({"shm"})


def check(prefill: Compat, decode: Compat) -> tuple[str, ...]:
    """Every reason why KV of ``prefill`` is of no use to ``decode``, each naming the field and both values.

    A field that only a newer version knows counts when both sides have it; one that is missing cannot be judged.
    """
    reasons: list[str] = []
    if prefill != decode:
        for name in _MUST_BE_EQUAL:
            reasons += _unequal(name, getattr(prefill, name), getattr(decode, name))
        for name in sorted(prefill.extra.keys() & decode.extra.keys()):
            reasons += _unequal(name, prefill.extra[name], decode.extra[name])
    if not common_engines(prefill, decode):
        offers = (
            f"prefill offers {_listed(prefill.transfer_engines)}, decode {_listed(decode.transfer_engines)}"
        )
        reasons.append(f"transfer_engines: {offers}: none in common")
    return tuple(reasons)


def check_pair(prefill: InstanceRecord, decode: InstanceRecord) -> tuple[str, ...]:
    """Every reason why these two cannot be a pair. State, readiness and generations taking traffic are not asked."""
    reasons: list[str] = []
    for side, record in (("prefill", prefill), ("decode", decode)):
        if record.role != side:
            reasons.append(f"role: the {side} side is {record.role}")
        if record.pp_size != 1:
            reasons.append(f"pp_size: {side} has {record.pp_size}, only 1 can be served")
    for name in ("group", "generation", "protocol"):
        reasons += _unequal(name, getattr(prefill, name), getattr(decode, name))
    if not set(prefill.models) & set(decode.models):
        served = f"prefill serves {_listed(prefill.models)}, decode {_listed(decode.models)}"
        reasons.append(f"models: {served}: none in common")
    return (
        *reasons,
        *size_problems(
            prefill_tp=prefill.tp_size,
            decode_cp=decode.cp_size,
            decode_tp=decode.tp_size,
        ),
        *_split("prefill", prefill),
        *_split("decode", decode),
        *check(prefill.compat, decode.compat),
        *_reach(prefill, decode),
    )


def kinds(records: Sequence[InstanceRecord]) -> KindOf:
    """How to tell the kind of each of ``records``: whoever pairs with one of a kind pairs with all of it.

    Where they run counts only while somebody might have to stay within one boot.
    """
    offers = [set(record.compat.transfer_engines) for record in records]
    anywhere = bool(offers and set.intersection(*offers) - _WITHIN_ONE_BOOT)

    def kind_of(record: InstanceRecord) -> Hashable:
        boot = "" if anywhere else record.boot_id
        sizes = record.tp_size, record.cp_size, record.pp_size
        # One compat object serves all instances that say the same.
        return record.group, record.generation, record.protocol, record.models, sizes, id(record.compat), boot

    return kind_of


def common_engines(prefill: Compat, decode: Compat) -> tuple[str, ...]:
    """The transfer engines both offer, in the prefill side's order."""
    return tuple(engine for engine in prefill.transfer_engines if engine in decode.transfer_engines)


def reaching_engines(prefill: InstanceRecord, decode: InstanceRecord) -> tuple[str, ...]:
    """The common transfer engines that get from one to the other: ``shm`` only within one boot of one machine."""
    one_boot = prefill.boot_id != "" and prefill.boot_id == decode.boot_id
    common = common_engines(prefill.compat, decode.compat)
    return tuple(engine for engine in common if one_boot or engine not in _WITHIN_ONE_BOOT)


def own_problems(record: InstanceRecord) -> tuple[str, ...]:
    """Every reason against the sizes of an instance, whatever its peer."""
    reasons = [] if record.pp_size == 1 else [f"pp_size: {record.pp_size}, only 1 can be served"]
    if record.cp_size != 1 and record.role != "prefill":
        reasons.append(f"cp_size: {record.role} has {record.cp_size}, only 1 can be served")
    return (*reasons, *_split(record.role, record))


def size_problems(*, prefill_tp: int, decode_cp: int, decode_tp: int) -> tuple[str, ...]:
    """Every reason why DP groups of these sizes cannot hand over to each other, whatever the model."""
    reasons = []
    if max(prefill_tp, decode_tp) % min(prefill_tp, decode_tp):
        reasons.append(f"tp_size: prefill has {prefill_tp}, decode {decode_tp}: neither divides the other")
    if decode_cp != 1:
        reasons.append(f"cp_size: decode has {decode_cp}, only 1 can be served")
    return tuple(reasons)


def split_problems(side: str, tp_size: int, heads: Collection[int]) -> tuple[str, ...]:
    """Why ``tp_size`` ranks of ``side`` can neither split so many KV heads nor repeat them: one reason per count."""
    return tuple(
        f"tp_size: {side} has {tp_size} ranks for {count} KV heads: neither divides the other"
        for count in sorted(set(heads))
        if count % tp_size and tp_size % count
    )


def _split(side: str, record: InstanceRecord) -> tuple[str, ...]:
    """Where every rank holds all (MLA), or nobody knows, there is nothing to split."""
    if record.compat.attention != "gqa":
        return ()
    return split_problems(side, record.tp_size, (record.compat.kv_heads,))


def _reach(prefill: InstanceRecord, decode: InstanceRecord) -> tuple[str, ...]:
    common = common_engines(prefill.compat, decode.compat)
    if not common or reaching_engines(prefill, decode):
        return ()
    boots = f"prefill runs under {shown(prefill.boot_id)}, decode under {shown(decode.boot_id)}"
    return (f"boot_id: {boots}: {_listed(common)} does not reach that far",)


def _unequal(name: str, prefill: Json | tuple[int, ...], decode: Json | tuple[int, ...]) -> tuple[str, ...]:
    if prefill == decode:
        return ()
    return (f"{name}: prefill has {_value(prefill)}, decode {_value(decode)}",)


def _value(value: Json | tuple[int, ...]) -> str:
    return _listed(value) if isinstance(value, tuple) else shown(value)


def _listed(items: tuple[object, ...]) -> str:
    return ", ".join(str(item) for item in items) or "none"
