"""A machine of its own for a test: a network namespace joined to this one by a cable that can be cut."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

import pytest

CALL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """``run`` before a command runs it there. ``address`` is the machine's, ``host`` ours as it sees us;
    ``plug`` is its end of the cable."""

    name: str
    address: str
    host: str
    plug: str

    @property
    def run(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Unplug it: what we send there is lost, and nobody is told."""
        _ip("-n", self.name, "link", "set", self.plug, "down")


@dataclass(frozen=True, slots=True)
class LoneMachine:
    """A machine with nothing but loopback. ``run`` before a command runs it there."""

    name: str

    @property
    def run(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and what it starts (threads, processes), is on that machine within the block."""
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.name}") as there:
            _enter(there)
            try:
                yield
            finally:
                _enter(here)


def require_namespaces() -> None:
    """Skip the test, with the reason, where this user and kernel allow no network namespaces."""
    if shutil.which("ip") is None:
        pytest.skip("no ip program (Debian: apt-get install iproute2)")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        with a_machine():
            return
    except subprocess.CalledProcessError as refused:
        pytest.skip(f"no network namespaces here: {refused.stderr.strip()}")


@contextmanager
def a_machine() -> Iterator[Machine]:
    """A namespace with one cable to this one, on addresses reserved for documentation."""
    name = f"pdcore-{secrets.token_hex(3)}"
    ours, plug = f"pd{name[-6:]}", f"pp{name[-6:]}"
    network = secrets.randbelow(64) * 4
    host, address = f"198.51.100.{network + 1}", f"198.51.100.{network + 2}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", plug, "netns", name)
        _ip("addr", "add", f"{host}/30", "dev", ours)
        _ip("link", "set", ours, "up")
        for arguments in (
            ("addr", "add", f"{address}/30", "dev", plug),
            ("link", "set", plug, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", name, *arguments)
        yield Machine(name, address, host, plug)
    finally:
        _ip("netns", "del", name)  # the cable goes with it


@contextmanager
def a_machine_alone() -> Iterator[LoneMachine]:
    """A namespace whose only interface is loopback: what listens everywhere there is reached by nobody else."""
    name = f"pdcore-{secrets.token_hex(3)}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield LoneMachine(name)
    finally:
        _ip("netns", "del", name)


def _enter(namespace: TextIO) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), 0):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=CALL_S)
