from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.engine.placement import Sizes, place, plan_instances
from pdcore.errors import ConfigError
from pdcore.topology.keys import RankPosition

pytestmark = pytest.mark.unit

counts = st.integers(1, 4)


def test_the_missions_example_has_two_leaders_of_each_role() -> None:
    prefill = plan_instances(["p0", "p1", "p2", "p3"], world_size=32, devices_per_node=16)
    decode = plan_instances(["d0", "d1"], world_size=16, devices_per_node=16)
    assert [one.leader for one in prefill] == ["p0", "p2"]
    assert [one.ips for one in prefill] == [("p0", "p1"), ("p2", "p3")]
    assert [one.leader for one in decode] == ["d0", "d1"]


@pytest.mark.parametrize(
    ("machines", "world", "per_node", "reason"),
    [
        (3, 32, 16, "3 machines cannot be divided into instances of 2"),
        (2, 24, 16, "world_size 24 does not divide by devices_per_node 16"),
        (0, 16, 16, "0 machines"),
    ],
)
def test_machines_that_are_left_over_are_refused(
    machines: int, world: int, per_node: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_instances([f"p{i}" for i in range(machines)], world, per_node)


def test_an_instance_smaller_than_a_machine_has_one_to_itself() -> None:
    assert [one.ips for one in plan_instances(["a", "b"], 2, 8)] == [("a",), ("b",)]


@given(dp=counts, cp=counts, tp=counts)
def test_positions_are_numbered_with_tp_fastest(dp: int, cp: int, tp: int) -> None:
    sizes = Sizes(dp=dp, cp=cp, tp=tp)
    assert [sizes.number(position) for position in sizes.positions()] == list(range(sizes.world))
    assert sizes.positions()[-1] == RankPosition(dp - 1, cp - 1, tp - 1)


@given(dp=counts, cp=counts, tp=counts, nnodes=counts)
def test_every_rank_is_on_exactly_one_machine(dp: int, cp: int, tp: int, nnodes: int) -> None:
    sizes = Sizes(dp=dp, cp=cp, tp=tp)
    if sizes.world % nnodes:
        with pytest.raises(ConfigError, match="nnodes"):
            place(sizes, nnodes, None)
        return
    placement = place(sizes, nnodes, None)
    assert placement == place(sizes, nnodes, sizes.world // nnodes)
    placed = [(node, rank) for node in range(nnodes) for rank in placement.on_node(node)]
    assert [rank for _, rank in placed] == list(sizes.positions())
    assert [placement.node_of(rank) for _, rank in placed] == [node for node, _ in placed]
    for node in range(nnodes):
        devices = [placement.device_of(rank) for rank in placement.on_node(node)]
        assert devices == list(range(placement.per_node))


@pytest.mark.parametrize(
    ("nnodes", "per_node", "reason"),
    [
        (1, 4, r"6 ranks \(dp 3 x cp 1 x tp 2\) on machines of 4 do not fill the last one"),
        (1, 3, "need --nnodes 2, not 1"),
        (2, 8, "need --nnodes 1, not 2"),
    ],
)
def test_machines_that_do_not_fit_the_layout_are_refused(nnodes: int, per_node: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        place(Sizes(dp=3, tp=2), nnodes, per_node)
