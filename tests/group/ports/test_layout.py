"""Where bands go, against a dumb search, and what is said when they fit nowhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.config.member_network import PortRange
from pdcore.group.ports.layout import Exhausted, PortsExhausted, place
from pdcore.group.render.facts import PortBand
from pdcore.group.render.needs import PortNeed

pytestmark = pytest.mark.unit

TEN = PortRange(100, 109)


class Ports:
    """Some taken by others; remembers what is ours."""

    def __init__(self, others: Collection[int] = ()) -> None:
        self.others = frozenset(others)
        self.ours: set[int] = set()

    def take(self, port: int) -> bool:
        if port in self.others or port in self.ours:
            return False
        self.ours.add(port)
        return True

    def give_back(self, port: int) -> None:
        self.ours.remove(port)


def needs(**counts: int) -> tuple[PortNeed, ...]:
    return tuple(PortNeed(name=name, count=count) for name, count in counts.items())


def placed(
    ports: Ports, wanted: tuple[PortNeed, ...], among: PortRange = TEN
) -> Mapping[str, PortBand] | Exhausted:
    return place(among, wanted, ports.take, ports.give_back)


@pytest.mark.parametrize(
    ("others", "wanted", "bases"),
    [
        ((), needs(http=1), {"http": 100}),
        ((), needs(http=1, kv_port=8), {"kv_port": 100, "http": 108}),
        ((100,), needs(http=1, kv_port=8), {"kv_port": 101, "http": 109}),
        ((102, 105), needs(http=1, a=2, b=4), {"b": 106, "a": 100, "http": 103}),
        ((100, 101, 102), needs(http=1), {"http": 103}),
        ((), (), {}),
    ],
)
def test_the_widest_goes_first_and_each_to_the_lowest_place(
    others: tuple[int, ...], wanted: tuple[PortNeed, ...], bases: dict[str, int]
) -> None:
    ports = Ports(others)
    found = placed(ports, wanted)
    assert not isinstance(found, Exhausted)
    assert {name: band.base for name, band in found.items()} == bases
    assert list(found) == [need.name for need in wanted]
    assert len(ports.ours) == sum(need.count or 0 for need in wanted)


@pytest.mark.parametrize(
    ("others", "wanted", "sentence"),
    [
        (
            (),
            needs(http=1, kv_port=16),
            "it needs http 1 + kv_port 16 = 17 ports; of the 10 ports in 100-109 0 are taken by others and 10 are "
            "free, fewer than the 16 of kv_port; widen --service-port-range",
        ),
        (
            (102, 105, 108),
            needs(http=1, kv_port=4),
            "it needs http 1 + kv_port 4 = 5 ports; of the 10 ports in 100-109 3 are taken by others and 7 are free, "
            "but in 4 pieces, the longest of 2, and kv_port takes 4 in a row; widen",
        ),
        (
            (),
            needs(a=6, b=5),
            "it needs a 6 + b 5 = 11 ports; of the 10 ports in 100-109 0 are taken by others, 6 by this member's "
            "other bands and 4 are free, fewer than the 5 of b; widen",
        ),
        (
            range(100, 110),
            needs(http=1),
            "it needs http 1 = 1 ports; of the 10 ports in 100-109 10 are taken by others and 0 are free, fewer than",
        ),
    ],
)
def test_exhaustion_is_a_calculation(
    others: Collection[int], wanted: tuple[PortNeed, ...], sentence: str
) -> None:
    ports = Ports(others)
    found = placed(ports, wanted)
    assert isinstance(found, Exhausted)
    assert str(found).startswith(sentence)
    assert str(PortsExhausted("g-1-prefill-1", found)).startswith("g-1-prefill-1: it needs")
    assert ports.ours == set()


@given(
    others=st.sets(st.integers(100, 109)),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
def test_it_finds_what_a_dumb_search_finds(others: set[int], counts: list[int]) -> None:
    wanted = tuple(PortNeed(name=f"b{number}", count=count) for number, count in enumerate(counts))
    ports = Ports(others)
    found = placed(ports, wanted)
    free = set(TEN.ports) - others
    for count in sorted(counts, reverse=True):
        base = next((one for one in TEN.ports if set(range(one, one + count)) <= free), None)
        if base is None:
            assert isinstance(found, Exhausted)
            assert (found.width, found.free) == (count, len(free))
            assert ports.ours == set()
            return
        free -= set(range(base, base + count))
    assert not isinstance(found, Exhausted)
    assert ports.ours == set(TEN.ports) - others - free


@pytest.mark.parametrize(
    "text", ["", "40000", "1-", "-5", "40010-40000", "0-10", "1-65536", "a-b", "1-2-3", "²-3", "000001-5"]
)
def test_a_range_is_two_ports(text: str) -> None:
    with pytest.raises(ValueError, match="must be LOW-HIGH"):
        PortRange.parse(text)


def test_the_default_range_has_sixty_four_ports() -> None:
    ports = PortRange.parse("40000-40063")
    assert (len(ports), str(ports)) == (64, "40000-40063")
