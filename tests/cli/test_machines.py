"""Lists of machines: which one this is, in which instance, or the sentence that says what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.cli.machines import Lists, Machine, this_machine
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit

P = ("p0", "p1", "p2", "p3")
D = ("d0", "d1")
WORLD = {"prefill": 32, "decode": 16}
HERE = {
    "prefill": [("p0", "p0", 0), ("p1", "p0", 1), ("p2", "p2", 0), ("p3", "p2", 1)],
    "decode": [("d0", "d0", 0), ("d1", "d1", 0)],
}
"""The example of the design document: address, leader and place in the instance of each machine, prefill's instances being of two."""
PLACES = [(role, index) for role, machines in HERE.items() for index in range(len(machines))]


def found(
    role: str,
    node_index: int | None,
    *,
    ips: Sequence[str] = (),
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    master: str | None = None,
    bootstrap: str | None = None,
    world: int | None = None,
) -> Machine:
    lists = Lists(
        role=role,
        ips=tuple(ips),
        prefill_ips=tuple(prefill),
        decode_ips=tuple(decode),
        node_index=node_index,
        master_node=master,
        bootstrap_host=bootstrap,
    )
    return this_machine(lists, world or WORLD[role], 16)


def expected(role: str, index: int) -> Machine:
    ip, leader, rank = HERE[role][index]
    return Machine(ip=ip, leader=leader, node_rank=rank, nnodes=WORLD[role] // 16)


@pytest.mark.parametrize(("role", "index"), PLACES)
def test_the_example_in_every_form_of_its_lists(role: str, index: int) -> None:
    own, here = (P if role == "prefill" else D), expected(role, index)
    assert found(role, index, ips=own) == here
    assert found(role, index, ips=own, prefill=P, decode=D) == here
    assert found(role, index, prefill=P, decode=D) == here
    assert found(role, index, ips=(*P, *D), prefill=P, decode=D) == here
    assert found(role, index, ips=(*P, *D), master=own[0]) == here
    assert found(role, index, ips=(*P, *D), master=own[0], bootstrap=here.ip) == here
    assert found(role, index, ips=(*P, *D), master=own[0], bootstrap=here.leader) == here


@pytest.mark.parametrize("index", [0, 1])
def test_an_index_may_count_within_the_merged_list(index: int) -> None:
    here = expected("decode", index)
    assert found("decode", len(P) + index, ips=(*P, *D), master="d0", bootstrap=here.ip) == here
    assert found("decode", len(P) + index, ips=(*P, *D), prefill=P) == here


def test_the_other_roles_list_tells_where_ours_ends() -> None:
    assert found("prefill", 3, ips=(*P, *D), decode=D) == expected("prefill", 3)
    assert found("decode", 1, ips=(*P, *D), prefill=P) == expected("decode", 1)
    assert found("decode", 1, ips=D, prefill=P) == expected("decode", 1)


def test_the_machines_of_one_instance_among_all_of_the_role() -> None:
    assert found("prefill", 1, ips=("p2", "p3"), prefill=P) == expected("prefill", 3)


def test_one_machine_needs_no_index() -> None:
    assert found("decode", None, ips=("d0",)) == expected("decode", 0)


def test_both_roles_may_share_a_machine() -> None:
    for role in ("prefill", "decode"):
        here = found(role, 0, ips=("a", "a"), master="a", bootstrap="a", world=1)
        assert here == Machine(ip="a", leader="a", node_rank=0, nnodes=1)


REFUSALS = [
    (
        {"role": "prefill", "node_index": 4, "ips": P},
        "--node-index: 4 is not within the 4 machines of whole prefill instances (p0, p1, p2, p3)",
    ),
    ({"role": "prefill", "node_index": 4, "ips": (*P, "d0")}, "--node-index: 4 is not within the 4 machines"),
    (
        {"role": "prefill", "node_index": None, "ips": P},
        "--node-index is missing: which of p0, p1, p2, p3 this machine is",
    ),
    (
        {"role": "prefill", "node_index": 0, "ips": ("p0",)},
        "1 machines cannot be divided into instances of 2 (world_size 32, devices_per_node 16)",
    ),
    (
        {"role": "prefill", "node_index": 0, "prefill": P[:3]},
        "3 machines cannot be divided into instances of 2",
    ),
    (
        {"role": "prefill", "node_index": 0, "ips": P, "world": 24},
        "world_size 24 does not divide by devices_per_node 16",
    ),
    (
        {"role": "prefill", "node_index": 0, "ips": ("p9",), "prefill": P, "world": 1},
        "--ips: p9 not in --prefill-ips p0, p1, p2, p3",
    ),
    (
        {"role": "decode", "node_index": 0, "ips": D, "master": "p0"},
        "--master-node: p0 is none of the decode machines d0, d1",
    ),
    (
        {"role": "decode", "node_index": 0, "ips": D, "bootstrap": "d1"},
        "--bootstrap-host: d1 is neither this machine (d0, by --node-index 0) nor its instance's leader",
    ),
    (
        {"role": "decode", "node_index": 2, "ips": ("p0", "p1", "d0", "d1", "d2", "d3"), "master": "d0"},
        "--node-index: 2 is d2 within the role and d0 within --ips; name this machine with --bootstrap-host",
    ),
]


@pytest.mark.parametrize(("given", "says"), REFUSALS, ids=[row[1][:40] for row in REFUSALS])
def test_what_does_not_say_which_machine_is_refused_with_flags_and_values(
    given: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as wrong:
        found(**given)  # type: ignore[arg-type]
    assert says in str(wrong.value)


@settings(deadline=None, max_examples=50)
@given(instances=st.integers(1, 3), size=st.integers(1, 3), others=st.integers(0, 3), data=st.data())
def test_every_machine_of_a_role_has_a_place_of_its_own(
    instances: int, size: int, others: int, data: st.DataObject
) -> None:
    own = [f"d{i}" for i in range(instances * size)]
    other = [f"p{i}" for i in range(others)]
    index = data.draw(st.integers(0, len(own) - 1))
    here = found("decode", index, ips=[*other, *own], master="d0", bootstrap=own[index], world=16 * size)
    assert here.ip == own[index]
    assert own.index(here.leader) + here.node_rank == index
    assert own.index(here.leader) % size == 0
