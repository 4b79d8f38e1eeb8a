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

CORES: Final = (ROUTER_CORE, LOAD_CORE)
START_S: Final = 180.0
ANSWER_S: Final = 60.0  # engines may be behind with what routers asked of them
FIRST_PORT: Final = (
    21_000  # of engines: our router names instances by their address, and draws lots for names
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One kind of router, whose command line is made of ``words``.

    ``{port}`` and ``{free}`` are filled in, ``{decode}`` is the decode's URL; a word with ``{prefill}`` is said for each.
    """

    name: str
    words: Sequence[str]

    @property
    def installed(self) -> bool:
        return Path(self.words[0]).exists()

    def command(self, port: int, prefills: Sequence[str], decode: str) -> list[str]:
        """The command line of one router."""
        filled = {"port": port, "free": quiet_port(), "decode": decode}
        return [
            word.format(prefill=prefill, **filled)
            for word in self.words
            for prefill in (prefills if "{prefill}" in word else [""])
        ]


_PLACE: Final = ("--host", "127.0.0.1", "--port", "{port}")
_PEER: Final = (
    *_PLACE,
    *("--policy", "cache_aware", "--worker-startup-check-interval", "1"),
    *("--prometheus-host", "127.0.0.1", "--prometheus-port", "{free}"),
)
SUBJECTS: Final = (
    Subject(
        name="sglang-router",
        words=(
            *(str(PEERS / "v-sgl/bin/python"), "-m", "sglang_router.launch_router", *_PEER),
            *("--log-level", "warn", "--worker-urls", "{prefill}"),
        ),
    ),
    Subject(
        name="vllm-router",
        words=(
            *(str(PEERS / "v-vllm/bin/vllm-router"), *_PEER, "--log-level", "warning"),
            *("--worker-urls", "{prefill}"),
        ),
    ),
    Subject(
        name=OURS,
        words=(
            *(sys.executable, "-m", "pdcore.router", *_PLACE, "--log-level", "warning"),
            *("--protocol", "bootstrap", f"--prefill={{prefill}},bootstrap={BOOTSTRAP_PORT}"),
            *("--decode", "{decode}"),
        ),
    ),
)
"""The Rust routers run without disaggregation, so that what is compared is the choice alone, and theirs at its best: with it
sglang-router 0.3.2 finds no tree for any model and draws at random."""


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
    engines: Engines

    @property
    def name(self) -> tuple[str, int]:
        """The kind of router and how many there are."""
        return self.subject.name, len(self.ports)

    def counts(self) -> list[Counts]:
        """What each prefill did since it began."""
        counts: list[Counts] = fetch(self.engines.decode + COUNTS.decode(), ANSWER_S)
        return counts


@contextmanager
def fleets(count: int, speed: float, scratch: Path) -> Iterator[list[Engines]]:
    """So many of them, ready. Where they are is the same in every run, unless somebody else is there."""
    with ExitStack() as stack:
        made = [stack.enter_context(Engines(speed, FIRST_PORT + 20 * n, scratch)) for n in range(count)]
        for one in made:
            one.wait_ready(one.is_ready)
        yield made


@contextmanager
def lanes(
    subjects: Sequence[Subject], engines: Sequence[Engines], count: int, scratch: Path
) -> Iterator[list[Lane]]:
    """``count`` routers of each of ``subjects``, ready. Engines have a core, which they share with every other router."""
    with ExitStack() as stack:
        for fleet in engines:
            fleet.begin()  # first requests are sent at 0 of the clock again
        routers = [
            [stack.enter_context(_Router(subject, fleet, CORES[n % 2], scratch)) for n in range(count)]
            for subject, fleet in zip(subjects, engines, strict=True)
        ]
        for router in (one for some in routers for one in some):
            router.wait_ready(router.is_ready, START_S)
        yield [
            Lane(subject=subject, ports=[one.port for one in some], engines=fleet)
            for subject, fleet, some in zip(subjects, engines, routers, strict=True)
        ]


def quiet_port() -> int:
    """A free port that the kernel gives to nobody by itself: all that connect here use up the others."""
    while True:
        port = random.randrange(22_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def body_of(messages: bytes, at: float = 0.0) -> bytes:
    """A request for one token, sent ``at`` of the workload's clock."""
    named = b'"model": "%s", "max_tokens": 1, "seed": %d' % (MODEL.encode(), round(at * 1e6))
    return b'{%s, "messages": %s}' % (named, messages)


class Engines(Running):
    """A fleet; where it is, is known once it is ready."""

    def __init__(self, speed: float, port: int, scratch: Path) -> None:
        command = [sys.executable, "-m", "bench.affinity.engines", str(speed), str(INSTANCES), str(port)]
        super().__init__(command, LOAD_CORE, scratch / f"engines-{port}.log")
        self.prefills: list[str] = []
        self.decode = ""

    def is_ready(self) -> bool:
        """Whether the last of them answers."""
        said = self._log.read_text().partition("\n")[0]
        if said.startswith("["):
            *self.prefills, self.decode = (f"http://127.0.0.1:{port}" for port in json.loads(said))
        return bool(self.decode) and answers(f"{self.decode}/health")

    def begin(self) -> None:
        """Empty caches, idle, and nothing counted."""
        fetch(self.decode + BEGIN.decode(), ANSWER_S)


class _Router(Running):
    def __init__(self, subject: Subject, engines: Engines, core: int, scratch: Path) -> None:
        self.port = quiet_port()
        command = subject.command(self.port, engines.prefills, engines.decode)
        super().__init__(command, core, scratch / f"router-{self.port}.log")

    def is_ready(self) -> bool:
        """Whether a request goes all the way."""
        asked = body_of(b'[{"role": "user", "content": "are you there?"}]')
        return answers(f"http://127.0.0.1:{self.port}/v1/chat/completions", asked)
