"""The processes of a live replay: one kind of router, once or several times, before a fleet of fake engines of its own."""

from __future__ import annotations

import json
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from bench.affinity.engines import BEGIN, COUNTS, MODEL
from bench.affinity.simulation import INSTANCES
from bench.affinity.verdicts import OURS
from bench.router.processes import LOAD_CORE, ROUTER_CORE, Running, answers, fetch
from bench.router.targets import BOOTSTRAP_PORT, PEERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One kind of router: what comes before ``--port``, how a prefill's URL is said, what comes after."""

    name: str
    program: Sequence[str]
    prefill: Sequence[str]
    options: Sequence[str] = ()

    @property
    def installed(self) -> bool:
        return Path(self.program[0]).exists()

    def command(self, port: int, prefills: Sequence[str], decode: str) -> list[str]:
        """The command line of one router."""
        named = [word.format(url=url) for url in prefills for word in self.prefill]
        options = [word.format(free=quiet_port()) for word in self.options]
        place = ("--host", "127.0.0.1", "--port", str(port))
        return [*self.program, *place, *options, *named, "--decode", decode]


_PEER: Final = (
    *("--policy", "cache_aware", "--worker-startup-check-interval", "1"),
    *("--prometheus-host", "127.0.0.1", "--prometheus-port", "{free}"),
)
SUBJECTS: Final = (
    Subject(
        name="sglang-router",
        program=(str(PEERS / "v-sgl/bin/python"), "-m", "sglang_router.launch_router", "--pd-disaggregation"),
        prefill=("--prefill", "{url}", str(BOOTSTRAP_PORT)),
        options=(*_PEER, "--log-level", "warn"),
    ),
    Subject(
        name="vllm-router",
        program=(str(PEERS / "v-vllm/bin/vllm-router"), "--vllm-pd-disaggregation", "--kv-connector", "nixl"),
        prefill=("--prefill", "{url}"),
        options=(*_PEER, "--log-level", "warning"),
    ),
    Subject(
        name=OURS,
        program=(sys.executable, "-m", "pdcore.router"),
        prefill=("--prefill", f"{{url}},bootstrap={BOOTSTRAP_PORT}"),
        options=("--protocol", "bootstrap", "--log-level", "warning"),
    ),
)


class Counts(TypedDict):
    """Requests served, blocks found and asked for, and how long each request took by the workload's clock."""

    served: int
    found: int
    asked: int
    took_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Running routers of one kind, and where their engines say what they found."""

    subject: Subject
    ports: Sequence[int]
    engines: str

    @property
    def name(self) -> tuple[str, int]:
        """The kind of router and how many there are."""
        return self.subject.name, len(self.ports)

    def begin(self, instant: float) -> None:
        """Empty caches; the workload begins at ``instant`` of the machine's monotonic clock."""
        fetch(f"{self.engines}{BEGIN.decode()}?{instant}")

    def counts(self) -> list[Counts]:
        """What each prefill did since it began."""
        counts: list[Counts] = fetch(self.engines + COUNTS.decode())
        return counts


@contextmanager
def lanes(which: Sequence[tuple[Subject, int]], speed: float, scratch: Path) -> Iterator[list[Lane]]:
    """All of ``which`` started, ready, with empty caches. Routers run on one core, all engines on another."""
    with ExitStack() as stack:
        fleets = [
            stack.enter_context(_Engines(speed, scratch / f"engines-{number}.log"))
            for number in range(len(which))
        ]
        for fleet in fleets:
            fleet.wait_ready(fleet.is_ready)
        routers = [
            [stack.enter_context(_Router(subject, fleet, scratch)) for _ in range(count)]
            for (subject, count), fleet in zip(which, fleets, strict=True)
        ]
        for router in (one for some in routers for one in some):
            router.wait_ready(router.is_ready)
        yield [
            Lane(subject=subject, ports=[one.port for one in some], engines=fleet.decode)
            for (subject, _), fleet, some in zip(which, fleets, routers, strict=True)
        ]


def quiet_port() -> int:
    """A free port that the kernel gives to nobody by itself: all that connect here use up the others."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def body_of(messages: bytes, at: float = 0.0) -> bytes:
    """A request for one token, sent ``at`` of the workload's clock."""
    named = b'"model": "%s", "max_tokens": 1, "user": "%.6f"' % (MODEL.encode(), at)
    return b'{%s, "messages": %s}' % (named, messages)


class _Engines(Running):
    """A fleet; where it is, is known once it is ready."""

    def __init__(self, speed: float, log: Path) -> None:
        command = [sys.executable, "-m", "bench.affinity.engines", str(speed), str(INSTANCES)]
        super().__init__(command, LOAD_CORE, log)
        self.prefills: list[str] = []
        self.decode = ""

    def is_ready(self) -> bool:
        """Whether the last of them answers."""
        said = self._log.read_text().partition("\n")[0]
        if said.startswith("["):
            *self.prefills, self.decode = (f"http://127.0.0.1:{port}" for port in json.loads(said))
        return bool(self.decode) and answers(f"{self.decode}/health")


class _Router(Running):
    def __init__(self, subject: Subject, engines: _Engines, scratch: Path) -> None:
        self.port = quiet_port()
        command = subject.command(self.port, engines.prefills, engines.decode)
        super().__init__(command, ROUTER_CORE, scratch / f"router-{self.port}.log")

    def is_ready(self) -> bool:
        """Whether a request goes all the way."""
        asked = body_of(b'[{"role": "user", "content": "are you there?"}]')
        return answers(f"http://127.0.0.1:{self.port}/v1/chat/completions", asked)
