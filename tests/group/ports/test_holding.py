"""Ports are held against other processes, found taken by other programs, kept through restarts, free after a death."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

from pdcore.config.member_network import PortRange
from pdcore.group.ports.holding import HeldPorts, is_bindable
from pdcore.group.ports.layout import PortsExhausted
from pdcore.group.render.needs import PortNeed

pytestmark = pytest.mark.integration

PROGRAM: Final = Path(__file__).with_name("holding_process.py")
ANSWER_S: Final = 60.0
HTTP: Final = (PortNeed(name="http", count=1),)
WIDE: Final = (PortNeed(name="http", count=1), PortNeed(name="band", count=3))


def free_range(count: int) -> PortRange:
    """So many ports in a row that nobody has."""
    for low in range(21000, 32000, count):
        if all(is_bindable(port) for port in range(low, low + count)):
            return PortRange(low, low + count - 1)
    raise AssertionError("no free ports in a row")


@contextmanager
def supervisor(ports: PortRange, members: int, width: int) -> Iterator[subprocess.Popen[str]]:
    """Another supervisor, which waits to be told to begin."""
    command = [sys.executable, str(PROGRAM), str(ports), str(members), str(width)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert heard(process) == "ready"
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that it says, within ANSWER_S."""
    out: IO[str] | None = process.stdout
    assert out is not None
    ready, _, _ = select.select([out], [], [], ANSWER_S)
    assert ready, "it says nothing"
    return out.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def test_two_supervisors_that_begin_at_once_never_take_the_same_port() -> None:
    ports = free_range(32)
    with ExitStack() as stack:
        both = [stack.enter_context(supervisor(ports, 8, 3)) for _ in range(2)]
        for one in both:
            tell(one)
        taken = [json.loads(heard(one)) for one in both]
        first, second = map(set, taken)
        assert not first & second
        assert first | second <= set(ports.ports)
        assert len(first) + len(second) >= 24  # of 32, since rows of three may leave gaps
        with HeldPorts(ports) as ours:
            rest = set(ports.ports) - first - second
            for number in range(len(rest)):
                assert ours.take(f"m{number}", HTTP)["http"].base in rest
            with pytest.raises(PortsExhausted, match=r"of the 32 ports in .* 32 are taken by others"):
                ours.take("one more", HTTP)
            both[0].kill()
            both[0].wait(ANSWER_S)
            for number in range(len(first)):
                assert ours.take(f"n{number}", HTTP)["http"].base in first


def test_a_member_keeps_its_ports_and_gives_them_back() -> None:
    ports = free_range(8)
    with HeldPorts(ports) as held, HeldPorts(ports) as other:
        bands = held.take("a", WIDE)
        assert held.take("a", WIDE) == bands
        assert (bands["band"].base, bands["http"].base) == (ports.low, ports.low + 3)
        assert other.take("b", HTTP)["http"].base == ports.low + 4
        assert held.take("a", HTTP)["http"].base == ports.low
        held.give_back("a")
        held.give_back("nobody")
        assert held.statistics().ports == 0
        assert other.take("c", WIDE)["band"].base == ports.low
        assert (other.statistics().members, other.statistics().ports) == (2, 5)
    with HeldPorts(ports) as again:
        assert again.take("a", HTTP)["http"].base == ports.low


def test_exhaustion_leaves_nothing_held() -> None:
    ports = free_range(4)
    with HeldPorts(ports) as held, HeldPorts(ports) as other:
        with pytest.raises(PortsExhausted, match=r"a: it needs http 1 \+ band 4 = 5 ports"):
            held.take("a", (PortNeed(name="http", count=1), PortNeed(name="band", count=4)))
        assert held.statistics().ports == 0
        assert other.take("b", WIDE)["band"].base == ports.low


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_what_another_program_listens_on_is_passed_over(address: str) -> None:
    ports = free_range(4)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((address, ports.low))
        with HeldPorts(ports) as held:
            assert held.take("a", HTTP)["http"].base == ports.low + 1


def test_a_connection_that_is_over_still_counts() -> None:
    port = free_range(1).low
    with socket.create_server(("127.0.0.1", port)) as server:
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first waits
            assert client.recv(1) == b""
    assert not is_bindable(port)


def test_a_child_does_not_inherit_what_is_held() -> None:
    ports = free_range(2)
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with HeldPorts(ports) as held:
        held.take("a", HTTP)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False
        ) as child:
            assert heard(child) == "up"  # only from then on is everything closed that it shall not have
            held.give_back("a")
            with HeldPorts(ports) as other:
                assert other.take("b", HTTP)["http"].base == ports.low
            child.kill()
