"""The routers under test and how each is started.

A peer comes twice: as fast as it goes (round robin, warnings only), and as it comes (its default policy and log level).
So do we: ``pdcore`` with everything on, and with one feature at a time taken away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PEERS: Final = Path(os.environ.get("PEERS_DIR", str(Path.home() / ".cache/pdcore-peers")))
HERE: Final = Path(__file__).resolve().parent
BOOTSTRAP_PORT: Final = 8998
PYTHON: Final = os.environ.get("ROUTER_PYTHON", sys.executable)
"""Runs our routers, with the packages of this process: the same minor version, built in another way say."""
PROJECT: Final = HERE.parents[1]
_COMPILED: Final = PROJECT / "build/compiled"
FASTEST: Final = _COMPILED if (_COMPILED / "done").exists() else PROJECT
"""The copy of the project whose request path is compiled, where ``make compiled`` has made one."""


def _packages(project: Path) -> Mapping[str, str]:
    """Have a process import ``project``, wherever it is started."""
    installed = (one for one in sys.path if "site-packages" in one)
    return {"PYTHONPATH": os.pathsep.join((str(project), *installed)), "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One router. ``{port}``, ``{metrics}``, ``{prefill}`` and ``{decode}`` in ``command`` are filled in."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        return Path(self.command[0]).exists()


def _peer(name: str, program: Sequence[str], *arguments: str) -> list[Target]:
    common = (
        *("--host", "127.0.0.1", "--port", "{port}", "--worker-startup-check-interval", "1"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", "{metrics}", *arguments),
    )
    quiet = "warning" if name == "vllm" else "warn"
    fast = ("--policy", "round_robin", "--log-level", quiet)
    usual = ("--policy", "cache_aware", "--log-level", "info")
    return [
        Target(name=f"{name}-fast", command=(*program, *common, *fast)),
        Target(name=name, command=(*program, *common, *usual)),
    ]


def _peers() -> list[Target]:
    sglang = (str(PEERS / "v-sgl/bin/python"), "-m", "sglang_router.launch_router")
    vllm = (str(PEERS / "v-vllm/bin/vllm-router"),)
    smg = (str(PEERS / "v-smg/bin/smg"), "launch")
    pair = ("--prefill", "{prefill}", str(BOOTSTRAP_PORT), "--decode", "{decode}")
    return [
        *_peer("sglang-router", sglang, "--pd-disaggregation", *pair),
        *_peer(
            *("vllm", vllm, "--vllm-pd-disaggregation", "--kv-connector", "nixl"),
            *("--prefill", "{prefill}", "--decode", "{decode}"),
        ),
        *_peer("smg", smg, "--pd-disaggregation", "--backend", "sglang", *pair),
    ]


def _ours(name: str, *arguments: str, project: Path = FASTEST) -> Target:
    return Target(
        name=name,
        command=(
            *(PYTHON, "-m", "pdcore.router", "--host", "127.0.0.1", "--port", "{port}"),
            *("--prefill", f"{{prefill}},bootstrap={BOOTSTRAP_PORT}", "--decode", "{decode}"),
            *("--protocol", "bootstrap", "--log-format", "json", *arguments),
        ),
        environment=_packages(project),
    )


def _bare(name: str, **environment: str) -> Target:
    return Target(
        name=name,
        command=(PYTHON, "-m", "bench.router.bare", "{port}", "{prefill}", "{decode}"),
        environment={**_packages(FASTEST), **environment},
    )


OURS: Final = "pdcore"
BARE: Final = "relay alone"
DIRECT: Final = "no router"
FEATURES: Final[Mapping[str, Target]] = {
    "access line": _ours("pdcore, no access line", "--log-level", "warning"),
    "prefix affinity": _ours("pdcore, round robin", "--policy", "round_robin"),
    "compiling": _ours("pdcore, not compiled", project=PROJECT),
}
"""What each feature costs is ``pdcore`` less the target named here."""

TARGETS: Final[Mapping[str, Target]] = {
    one.name: one
    for one in (
        *_peers(),
        _ours(OURS),
        _bare(BARE),
        *FEATURES.values(),
        Target(name=DIRECT, command=(str(PEERS / "stub"),)),
    )
}
