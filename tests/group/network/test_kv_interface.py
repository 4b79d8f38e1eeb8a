"""The interface that carries KV: one, or a refusal that names those it could have been."""

from __future__ import annotations

import pytest

from pdcore.group.modes.mode import Plane
from pdcore.group.network.kv_interface import WAYS_OUT, choose
from pdcore.interfaces import VIRTUAL, Interface

pytestmark = pytest.mark.unit


def one(name: str, *addresses: str, up: bool = True) -> Interface:
    return Interface(name=name, up=up, addresses=addresses)


LO = one("lo", "127.0.0.1", "::1")
ETH0 = one("eth0", "10.0.0.7", "fe80::1%eth0")
IB0 = one("ib0", "192.168.7.7")
DOCKER = one("docker0", "172.17.0.1")
DOWN = one("eth9", "10.9.0.1", up=False)
LINK_LOCAL = one("eth8", "169.254.3.4", "fe80::8")


@pytest.mark.parametrize(
    ("interfaces", "plane", "named", "management", "chosen"),
    [
        ([LO, ETH0, DOCKER, DOWN, LINK_LOCAL], "data", None, "10.0.0.7", "eth0"),
        ([LO, ETH0], None, None, "10.0.0.7", "eth0"),
        ([LO, ETH0, IB0], "data", "ib0", "10.0.0.7", "ib0"),
        ([LO, ETH0, DOCKER], "data", "docker0", "10.0.0.7", "docker0"),
        ([LO, ETH0, IB0], "control", None, "10.0.0.7", "eth0"),
        ([LO, ETH0, DOCKER], "control", None, "172.17.0.1", "docker0"),
        ([LO, ETH0, IB0], "control", "ib0", "10.0.0.7", "ib0"),
    ],
)
def test_one_that_is_named_or_the_only_one_or_the_managements(
    interfaces: list[Interface], plane: Plane | None, named: str | None, management: str, chosen: str
) -> None:
    found = choose(interfaces, plane, named=named, management_ip=management)
    assert (found.name, found.problem, found.warning) == (chosen, "", "")


def test_of_several_none_is_guessed_and_all_are_listed() -> None:
    found = choose([LO, ETH0, IB0, DOCKER], "data", named=None, management_ip="10.0.0.7")
    assert found.name is None
    assert found.problem == (
        "this machine has 2 interfaces that could carry KV: eth0 10.0.0.7 fe80::1%eth0, ib0 192.168.7.7; "
        + WAYS_OUT
    )


@pytest.mark.parametrize(
    ("interfaces", "management", "chosen", "warning"),
    [
        ([LO, DOCKER], "127.0.0.1", "lo", "lo 127.0.0.1 ::1 leads to no other machine"),
        ([LO, DOCKER], "172.17.0.1", "docker0", "docker0 172.17.0.1 leads to no other machine"),
        ([LO, ETH0], "127.0.0.1", "eth0", "KV goes over eth0, while the machine is reached by lo"),
    ],
)
def test_a_doubtful_one_is_used_with_a_word(
    interfaces: list[Interface], management: str, chosen: str, warning: str
) -> None:
    found = choose(interfaces, "data", named=None, management_ip=management)
    assert found.name == chosen
    assert found.warning.startswith(warning)


@pytest.mark.parametrize(
    ("interfaces", "plane", "named", "management", "problem"),
    [
        ([LO], "data", None, "10.0.0.7", "no interface has 10.0.0.7 among lo 127.0.0.1 ::1"),
        ([LO, ETH0], "control", None, "10.0.0.8", "no interface has 10.0.0.8 among"),
        ([], "data", None, None, "no interface is the machine's own among none"),
        ([LO, ETH0], "data", "eth1", "10.0.0.7", "'eth1' is no interface of this machine, which has lo"),
        ([LO, DOWN], "data", "eth9", "10.0.0.7", "eth9 10.9.0.1 (down) carries nothing"),
    ],
)
def test_without_any_the_reason_is_told(
    interfaces: list[Interface], plane: Plane, named: str | None, management: str | None, problem: str
) -> None:
    found = choose(interfaces, plane, named=named, management_ip=management)
    assert found.name is None
    assert found.problem.startswith(problem)


@pytest.mark.parametrize(
    "name",
    "docker br- veth cni flannel cali cilium_ lxc weave datapath antrea kube- nodelocaldns vxlan genev_sys ovs-system "
    "virbr vnet tunl tun tap wg ppp tailscale zt dummy utun bridge".split(),
)
def test_interfaces_of_containers_and_tunnels_are_no_candidates(name: str) -> None:
    assert not one(f"{name}0", "10.1.0.1").is_routable
    assert name in VIRTUAL
