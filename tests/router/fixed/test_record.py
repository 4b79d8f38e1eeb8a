"""The keys of an engine at a fixed address: what the keyspace makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from pdcore.config.targets import Target, target
from pdcore.router.fixed.record import bootstrap_port, records
from pdcore.router.fixed.standing import Standing
from pdcore.topology import codec
from pdcore.topology.compat import check_pair
from pdcore.topology.topology import Stored, Topology, build

pytestmark = pytest.mark.unit

UP: Final = Standing(incarnation="i1", is_up=True, models=("m",), why="")
P, D = target("prefill", "fd00::1"), target("decode", "d0.example:9")


def view(*targets: Target, standing: Standing = UP) -> Topology:
    """A keyspace with these engines."""
    found = {key: one for made in targets for key, one in records(made, standing, "bootstrap").items()}
    return build({key: Stored(codec.encode(one), 5) for key, one in found.items()}, 7)


def test_every_key_is_read_and_an_engine_that_is_up_is_ready() -> None:
    topology = view(P, D, target("unified", "u"))
    assert not topology.rejected
    assert [one.ready for one in topology.instances.values()] == [True] * 3
    assert topology.models() == ("m",)


def test_an_engine_that_is_down_says_why_not() -> None:
    topology = view(P, standing=replace(UP, is_up=False))
    assert topology.instances[P.instance_id].why_not_ready == ("state is starting",)


def test_any_prefill_pairs_with_any_decode_and_nobody_chooses_its_dp_rank() -> None:
    topology = view(P, D)
    prefill, decode = (topology.instances[one.instance_id].record for one in (P, D))
    assert check_pair(prefill, decode) == ()
    assert prefill.chooses_dp_rank


@pytest.mark.parametrize(
    ("word", "protocol", "port"),
    [
        ("p", "bootstrap", 18800),
        ("p,bootstrap=1", "bootstrap", 1),
        ("p", "nixl", None),
        ("p,bootstrap=1", "mooncake", 1),
    ],
)
def test_the_bootstrap_port_is_ours_where_the_protocol_is(word: str, protocol: str, port: int | None) -> None:
    assert bootstrap_port(target("prefill", word), protocol) == port


@pytest.mark.parametrize("protocol", ["bootstrap", "nixl", "mooncake", "ascend-layerwise"])
def test_a_prefill_is_a_record_in_every_protocol(protocol: str) -> None:
    made = records(target("prefill", "p"), UP, protocol)
    for key, record in made.items():
        assert codec.decode(key, codec.encode(record)) == record


def test_a_decode_has_none() -> None:
    assert bootstrap_port(D, "bootstrap") is None
