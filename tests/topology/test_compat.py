"""Every reason why two instances cannot serve one request, each with the field and both values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.topology.compat import check, check_pair, kinds, own_problems, reaching_engines
from pdcore.topology.records import InstanceRecord, Role
from tests.support.fleet import compat, instance_record

pytestmark = pytest.mark.unit

PREFILL = instance_record()
DECODE = instance_record("decode")
SIX_HEADS = compat(kv_heads=6)
CP_OF = "cp_size: {} has 2, only 1 can be served"


COMPATS = (
    compat(),
    SIX_HEADS,
    compat(transfer_engines=("shm",)),
    compat(transfer_engines=("shm", "mooncake")),
)


def some(role: Role) -> st.SearchStrategy[InstanceRecord]:
    """Records that differ in what pairs ask about, each in few ways, and in what they do not."""
    return st.builds(
        lambda **changes: instance_record(role, **changes),
        compat=st.sampled_from(COMPATS),
        boot_id=st.sampled_from(["", "boot-a", "boot-b"]),
        group=st.sampled_from(["", "g"]),
        models=st.sampled_from([("tiny",), ("tiny", "large"), ("large",)]),
        tp_size=st.sampled_from([1, 2, 3]),
        cp_size=st.sampled_from([1, 1, 2]),
        machine=st.sampled_from(["host-a", "host-b"]),
        pid=st.integers(1, 3),
    )


def decode(**changes: Any) -> InstanceRecord:
    return instance_record("decode", **changes)


def test_like_goes_with_like() -> None:
    assert check(compat(), compat()) == ()
    assert check_pair(PREFILL, DECODE) == ()


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("model_fingerprint", "ff", "model_fingerprint: prefill has '0123456789abcdef', decode 'ff'"),
        ("context_length", 4096, "context_length: prefill has 8192, decode 4096"),
        ("kv_dtype", "bfloat16", "kv_dtype: prefill has 'float32', decode 'bfloat16'"),
        ("block_sizes", (16, 32), "block_sizes: prefill has 16, decode 16, 32"),
        ("kv_layout", "layer_major", "kv_layout: prefill has 'block_major', decode 'layer_major'"),
        ("attention", "mla", "attention: prefill has 'gqa', decode 'mla'"),
        ("layers", 31, "layers: prefill has 30, decode 31"),
        ("kv_heads", 4, "kv_heads: prefill has 3, decode 4"),
        ("head_dim", 128, "head_dim: prefill has 64, decode 128"),
        ("wire", 2, "wire: prefill has 1, decode 2"),
        ("layout", 2, "layout: prefill has 1, decode 2"),
    ],
)
def test_what_must_be_agreed_on_is_named(field: str, value: object, reason: str) -> None:
    assert check(compat(), compat(**{field: value})) == (reason,)
    assert check_pair(PREFILL, decode(compat=compat(**{field: value}))) == (reason,)


@given(st.lists(some("prefill"), min_size=2, max_size=5), st.lists(some("decode"), min_size=2, max_size=5))
def test_whoever_pairs_with_one_of_a_kind_pairs_with_all_of_it(
    prefills: list[InstanceRecord], decodes: list[InstanceRecord]
) -> None:
    kind_of = kinds([*prefills, *decodes])
    verdicts: dict[object, set[bool]] = {}
    for prefill in prefills:
        for other in decodes:
            kind = kind_of(prefill), kind_of(other)
            verdicts.setdefault(kind, set()).add(check_pair(prefill, other) == ())
    assert all(len(said) == 1 for said in verdicts.values())


def test_a_machine_makes_no_kind_of_its_own_where_everybody_gets_there() -> None:
    apart = [decode(boot_id=f"boot-{number}", machine=f"host-{number}", pid=number) for number in range(9)]
    assert len(set(map(kinds([*apart, PREFILL]), apart))) == 1
    alone = [decode(boot_id=one.boot_id, compat=compat(transfer_engines=("shm",))) for one in apart]
    assert len(set(map(kinds([*alone, PREFILL]), alone))) == 9


def test_all_reasons_are_given_together() -> None:
    other = compat(layers=1, wire=9, transfer_engines=("mooncake",))
    assert check(compat(), other) == (
        "layers: prefill has 30, decode 1",
        "wire: prefill has 1, decode 9",
        "transfer_engines: prefill offers shm, tcp, decode mooncake: none in common",
    )


def test_equal_blocks_without_any_engine_are_no_pair() -> None:
    none = compat(transfer_engines=())
    assert check(none, none) == ("transfer_engines: prefill offers none, decode none: none in common",)


def test_a_newer_field_counts_when_both_have_it() -> None:
    yarn, linear = compat(extra={"rope": "yarn"}), compat(extra={"rope": "linear"})
    assert check(yarn, linear) == ("rope: prefill has 'yarn', decode 'linear'",)
    assert check(yarn, compat()) == check(compat(), yarn) == check(yarn, yarn) == ()


@pytest.mark.parametrize(
    ("prefill", "decode", "reason"),
    [
        (DECODE, DECODE, "role: the prefill side is decode"),
        (PREFILL, instance_record("unified"), "role: the decode side is unified"),
        (PREFILL, decode(group="g"), "group: prefill has '', decode 'g'"),
        (PREFILL, decode(generation=2), "generation: prefill has 0, decode 2"),
        (PREFILL, decode(protocol="other"), "protocol: prefill has 'pdcore', decode 'other'"),
        (
            PREFILL,
            decode(models=("big", "large")),
            "models: prefill serves tiny, decode big, large: none in common",
        ),
        (PREFILL, decode(pp_size=2), "pp_size: decode has 2, only 1 can be served"),
        (instance_record(pp_size=3), DECODE, "pp_size: prefill has 3, only 1 can be served"),
        (PREFILL, decode(cp_size=2), "cp_size: decode has 2, only 1 can be served"),
        (
            instance_record(tp_size=2, compat=SIX_HEADS),
            decode(tp_size=3, compat=SIX_HEADS),
            "tp_size: prefill has 2, decode 3: neither divides the other",
        ),
    ],
)
def test_what_keeps_a_pair_apart_is_named(
    prefill: InstanceRecord, decode: InstanceRecord, reason: str
) -> None:
    assert check_pair(prefill, decode) == (reason,)


@pytest.mark.parametrize(("prefill", "decode_size"), [(1, 6), (6, 1), (6, 3), (2, 2), (12, 6), (2, 12)])
def test_tensor_parallel_sizes_that_divide_pair(prefill: int, decode_size: int) -> None:
    wide = instance_record(tp_size=prefill, cp_size=2, dp_size=3, compat=SIX_HEADS)
    assert check_pair(wide, decode(tp_size=decode_size, compat=SIX_HEADS)) == ()


def test_ranks_that_cannot_share_the_heads_are_named_on_each_side() -> None:
    assert check_pair(instance_record(tp_size=2), decode(tp_size=4)) == (
        "tp_size: prefill has 2 ranks for 3 KV heads: neither divides the other",
        "tp_size: decode has 4 ranks for 3 KV heads: neither divides the other",
    )


def test_ranks_that_all_hold_everything_share_no_heads() -> None:
    latent = compat(attention="mla")
    assert check_pair(instance_record(tp_size=16, compat=latent), decode(compat=latent)) == ()


@pytest.mark.parametrize(
    ("record", "reasons"),
    [
        (instance_record(cp_size=4, tp_size=3, dp_size=2), ()),
        (decode(pp_size=2, cp_size=2), ("pp_size: 2, only 1 can be served", CP_OF.format("decode"))),
        (instance_record("unified", cp_size=2), (CP_OF.format("unified"),)),
        (
            decode(tp_size=2),
            ("tp_size: decode has 2 ranks for 3 KV heads: neither divides the other",),
        ),
    ],
)
def test_sizes_that_no_peer_could_mend_are_named(record: InstanceRecord, reasons: tuple[str, ...]) -> None:
    assert own_problems(record) == reasons


def test_one_model_in_common_is_enough() -> None:
    assert check_pair(instance_record(models=("a", "b")), decode(models=("b", "c"))) == ()


SHM = compat(transfer_engines=("shm",))


@pytest.mark.parametrize(
    ("prefill_boot", "decode_boot", "engines"),
    [
        ("boot-a", "boot-a", ("shm", "tcp")),
        ("boot-a", "boot-b", ("tcp",)),
        ("", "", ("tcp",)),
        ("boot-a", "", ("tcp",)),
    ],
)
def test_shared_memory_reaches_only_within_one_boot(
    prefill_boot: str, decode_boot: str, engines: tuple[str, ...]
) -> None:
    assert reaching_engines(instance_record(boot_id=prefill_boot), decode(boot_id=decode_boot)) == engines


def test_a_pair_that_no_common_engine_joins_is_refused() -> None:
    far = decode(boot_id="boot-b", compat=SHM)
    assert check_pair(PREFILL, far) == (
        "boot_id: prefill runs under 'boot-a', decode under 'boot-b': shm does not reach that far",
    )
    assert check_pair(PREFILL, decode(compat=SHM)) == ()


def test_engines_that_are_not_shared_are_not_blamed_on_the_distance() -> None:
    apart = decode(boot_id="boot-b", compat=compat(transfer_engines=("mooncake",)))
    assert check_pair(PREFILL, apart) == (
        "transfer_engines: prefill offers shm, tcp, decode mooncake: none in common",
    )


def test_an_engine_that_reaches_anywhere_joins_two_machines() -> None:
    mooncake = compat(transfer_engines=("mooncake", "shm"))
    assert check_pair(instance_record(compat=mooncake), decode(boot_id="boot-b", compat=mooncake)) == ()
