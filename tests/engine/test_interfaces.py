"""Which address others are told: over imaginary machines, and what the kernel says of this one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.engine.interfaces import interface_with, own_address, read_interfaces
from pdcore.errors import ConfigError
from pdcore.interfaces import VIRTUAL, Interface

pytestmark = pytest.mark.unit

LO = Interface(name="lo", up=True, addresses=("127.0.0.1", "::1"))
ETH0 = Interface(name="eth0", up=True, addresses=("10.0.0.5", "fe80::1%eth0"))
ETH1 = Interface(name="eth1", up=True, addresses=("10.1.0.5",))
DOWN = Interface(name="eth2", up=False, addresses=("10.2.0.5",))
DOCKER = Interface(name="docker0", up=True, addresses=("172.17.0.1",))
SIX = Interface(name="eth6", up=True, addresses=("fe80::6%eth6", "fd00::6"))
LINK_LOCAL = Interface(name="eth7", up=True, addresses=("169.254.3.4", "fe80::7%eth7"))
TWICE = Interface(name="ib0", up=True, addresses=("10.3.0.5", "10.3.0.6"))


@pytest.mark.parametrize(
    ("machine", "ifname", "address"),
    [
        ([LO, ETH0], None, "10.0.0.5"),
        ([LO, ETH0, DOCKER, LINK_LOCAL, DOWN], None, "10.0.0.5"),
        ([LO, DOWN, ETH1], None, "10.1.0.5"),
        ([LO, SIX], None, "fd00::6"),
        ([LO, ETH0, ETH1], "eth1", "10.1.0.5"),
        ([LO, ETH0, DOCKER], "docker0", "172.17.0.1"),
        ([LO, ETH0], "lo", "127.0.0.1"),
    ],
)
def test_the_only_routable_address_or_that_of_the_named_interface(
    machine: list[Interface], ifname: str | None, address: str
) -> None:
    assert own_address(machine, ifname) == address


WAYS = "; name one with --advertise-ip / PDCORE_ADVERTISE_IP or --kv-ifname / PDCORE_KV_IFNAME"


@pytest.mark.parametrize(
    ("machine", "ifname", "says"),
    [
        (
            [ETH0, ETH1, LO],
            None,
            f"this machine has 2 routable addresses: eth0 10.0.0.5 fe80::1%eth0, eth1 10.1.0.5, lo 127.0.0.1 ::1{WAYS}",
        ),
        ([TWICE], None, f"this machine has 2 routable addresses: ib0 10.3.0.5 10.3.0.6{WAYS}"),
        ([LO, DOCKER], None, "this machine has no routable addresses: lo 127.0.0.1 ::1, docker0 172.17.0.1"),
        ([DOWN], None, "this machine has no routable addresses: eth2 10.2.0.5 (down)"),
        ([], None, "this machine has no routable addresses: none"),
        (
            [TWICE],
            "ib0",
            "--kv-ifname / PDCORE_KV_IFNAME: 'ib0' has 2 routable addresses: ib0 10.3.0.5 10.3.0.6",
        ),
        ([LINK_LOCAL], "eth7", "'eth7' has no routable addresses"),
        ([DOWN], "eth2", "--kv-ifname / PDCORE_KV_IFNAME: 'eth2' is down"),
        ([ETH0], "eth9", "'eth9' is no interface of this machine, which has eth0 10.0.0.5 fe80::1%eth0"),
    ],
)
def test_a_doubt_is_refused_with_the_list(machine: list[Interface], ifname: str | None, says: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        own_address(machine, ifname)
    assert says in str(wrong.value)


@pytest.mark.parametrize("prefix", VIRTUAL)
def test_an_interface_that_leads_to_containers_or_tunnels_is_never_taken_silently(prefix: str) -> None:
    virtual = Interface(name=f"{prefix}7", up=True, addresses=("10.9.0.1",))
    assert own_address([virtual, ETH0], None) == "10.0.0.5"


@settings(deadline=None, max_examples=50)
@given(machine=st.lists(st.sampled_from([LO, ETH0, ETH1, DOWN, DOCKER, SIX, LINK_LOCAL, TWICE]), unique=True))
def test_what_is_taken_silently_is_the_only_candidate(machine: list[Interface]) -> None:
    candidates = [one for one in machine if one in (ETH0, ETH1, SIX, TWICE)]
    if len(candidates) == 1 and candidates != [TWICE]:
        assert own_address(machine, None) in candidates[0].addresses
        return
    with pytest.raises(ConfigError):
        own_address(machine, None)


def test_the_kernel_has_a_loopback() -> None:
    found = {one.name: one for one in read_interfaces()}
    assert found["lo"].up
    assert "127.0.0.1" in found["lo"].addresses


def test_an_address_is_found_at_its_interface() -> None:
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("192.0.2.77") is None
