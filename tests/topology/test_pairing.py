"""Who has nobody to serve with, and what is in the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.topology.compat import check_pair
from pdcore.topology.pairing import Alone, alone
from pdcore.topology.records import InstanceRecord, Record, Role
from pdcore.topology.topology import Topology, build
from tests.support.fleet import compat, complete, instance_record, stored

pytestmark = pytest.mark.unit

few = settings(max_examples=100, deadline=None, derandomize=True, database=None)

members = st.lists(
    st.tuples(
        st.sampled_from(("prefill", "decode", "unified")),
        st.sampled_from(("fp8", "bf16")),
        st.sampled_from((("shm", "tcp"), ("tcp",), ("shm",))),
        st.sampled_from(("boot-a", "boot-b")),
        st.sampled_from(("serving", "starting", "draining")),
        st.sampled_from((("", 0), ("g", 1), ("g", 2))),
    ),
    max_size=6,
)


def view(instances: dict[str, InstanceRecord]) -> Topology:
    records: dict[str, Record] = {}
    for name, record in instances.items():
        records |= complete(name, record)
    return build(stored(records), 1)


def test_a_pair_is_not_alone_and_a_lone_prefill_is() -> None:
    prefill, decode = instance_record("prefill"), instance_record("decode")
    assert alone(view({"p": prefill, "d": decode})) == {}
    assert alone(view({"p": prefill})) == {"p": Alone(None, ())}
    assert alone(view({"p": prefill}))["p"].sentence("p", "decode") == "p has no decode to serve with"


def test_the_nearest_is_named_with_every_reason_against_it() -> None:
    found = alone(
        view(
            {
                "p": instance_record("prefill"),
                "d0": instance_record("decode", compat=compat(kv_dtype="fp8", head_dim=32)),
                "d1": instance_record("decode", compat=compat(kv_dtype="fp8")),
            }
        )
    )
    assert set(found) == {"p", "d0", "d1"}
    nearest, reasons = found["p"]
    assert nearest == "d1"
    assert len(reasons) == 1
    assert (
        found["p"]
        .sentence("p", "decode")
        .startswith("p can pair with no decode; nearest is d1: kv_dtype: prefill")
    )


@few
@given(members)
def test_who_is_alone_is_who_fits_nobody(
    drawn: list[tuple[Role, str, tuple[str, ...], str, str, tuple[str, int]]],
) -> None:
    instances = {
        f"i{number}": instance_record(
            role,
            compat=compat(kv_dtype=kv_dtype, transfer_engines=engines),
            boot_id=boot,
            state=state,
            group=group,
            generation=generation,
        )
        for number, (role, kv_dtype, engines, boot, state, (group, generation)) in enumerate(drawn)
    }

    def fits_nobody(one: InstanceRecord) -> bool:
        others = [
            other
            for other in instances.values()
            if {one.role, other.role} == {"prefill", "decode"} and other.state != "draining"
        ]
        pairs = [(one, other) if one.role == "prefill" else (other, one) for other in others]
        return all(check_pair(*pair) for pair in pairs)

    expected = {
        name
        for name, one in instances.items()
        if one.role != "unified" and one.state == "serving" and fits_nobody(one)
    }
    assert set(alone(view(instances))) == expected
