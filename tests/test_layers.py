"""The package keeps to the import table, the banned formats and the shape limits; and the checker sees when not."""

from __future__ import annotations

from pathlib import Path

import pytest

import pdcore
from tests.support.layers import MAX_FUNCTION_LINES, MAX_MODULE_LINES, MAY_IMPORT, SHARED, WILDCARD, problems

pytestmark = pytest.mark.unit

PACKAGE = Path(pdcore.__file__).parent


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        names = [PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


MODULES = modules()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_keeps_the_rules(name: str) -> None:
    assert problems(name, MODULES[name].read_text(encoding="utf-8")) == []


def test_the_whole_package_is_looked_at() -> None:
    parts = {name.split(".")[1] for name in MODULES if "." in name}
    assert {"topology", "registry", "router", "engine", "group", *SHARED} <= parts <= set(MAY_IMPORT)
    assert len(MODULES) > 40


def test_router_engine_and_group_never_import_each_other() -> None:
    apart = {"router", "engine", "group"}
    for part in apart:
        assert MAY_IMPORT[part] & apart == {part}
    assert [part for part, allowed in MAY_IMPORT.items() if "cli" in allowed] == ["cli", "__main__"]


BROKEN = [
    ("pdcore.topology.x", "from pdcore.config import load", "topology may not import pdcore.config.load"),
    ("pdcore.topology.x", "from pdcore import telemetry", "topology may not import pdcore.telemetry"),
    ("pdcore.topology.x", "import pdcore.registry.store", "topology may not import pdcore.registry.store"),
    ("pdcore.topology.x", "import time", "topology may not import time: it is not pure"),
    ("pdcore.topology.x", "from os import environ", "topology may not import os: it is not pure"),
    ("pdcore.topology.x", "import os.path as p", "topology may not import os: it is not pure"),
    ("pdcore.topology.x", "def f():\n    import random", "topology may not import random: it is not pure"),
    ("pdcore.topology.x", "import asyncio", "topology may not import asyncio: it is not pure"),
    ("pdcore.topology.x", "import logging", "topology may not import logging: it is not pure"),
    (
        "pdcore.topology.x",
        "import msgspec",
        "topology may not import msgspec: it is not in the standard library",
    ),
    ("pdcore.topology.x", "async def f(): ...", "topology may not await"),
    ("pdcore.topology.x", "open('f')", "topology may not call open"),
    ("pdcore.registry.x", "from pdcore.router import pick", "registry may not import pdcore.router.pick"),
    (
        "pdcore.registry.x",
        "from pdcore.engine.rank import run",
        "registry may not import pdcore.engine.rank.run",
    ),
    ("pdcore.router.x", "import pdcore.engine", "router may not import pdcore.engine"),
    ("pdcore.router.a.b", "from pdcore.group import spec", "router may not import pdcore.group.spec"),
    (
        "pdcore.engine.x",
        "from pdcore.router.api import parse",
        "engine may not import pdcore.router.api.parse",
    ),
    ("pdcore.engine.x", "from pdcore import group", "engine may not import pdcore.group"),
    ("pdcore.group.x", "from pdcore import engine", "group may not import pdcore.engine"),
    ("pdcore.group.x", "from pdcore.cli import main", "group may not import pdcore.cli.main"),
    ("pdcore.clock", "from pdcore.topology import keys", "clock may not import pdcore.topology.keys"),
    (
        "pdcore.router.x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pdcore.engine import app",
        "router may not import pdcore.engine.app",
    ),
    (
        "pdcore.router.x",
        "import importlib\nimportlib.import_module('pdcore.cli')",
        "router may not import pdcore.cli",
    ),
    ("pdcore.router.x", "__import__('pdcore.cli')", "router may not import pdcore.cli"),
    ("pdcore.extra.x", "", "pdcore.extra is not in the import table"),
    ("pdcore.router.x", "from . import pick", "the import of ..pick is relative"),
    ("pdcore.router.x", "from ..registry.store import Put", "the import of ..registry.store.Put is relative"),
    (
        "pdcore.router.x",
        "from pdcore.registry._wire import Frame",
        "pdcore.registry._wire.Frame is private to pdcore.registry",
    ),
    (
        "pdcore.router.x",
        "from pdcore.registry.store import _merge",
        "pdcore.registry.store._merge is private to pdcore.registry",
    ),
    ("pdcore.router.x", "import torch", "only the engine may import torch"),
    ("pdcore.registry.x", "from zmq.asyncio import Context", "only the engine may import zmq"),
    ("pdcore.cli", "def f():\n    import numpy as np", "only the engine may import numpy"),
    ("pdcore.engine.x", "import pickle", "pickle runs what it reads"),
    ("pdcore.engine.x", "from marshal import loads", "marshal runs what it reads"),
    ("pdcore.engine.x", "import dill, cloudpickle", "cloudpickle runs what it reads"),
    ("pdcore.engine.x", "eval('1')", "eval runs what it is given"),
    ("pdcore.engine.x", "exec('1')", "exec runs what it is given"),
    ("pdcore.engine.x", "socket.recv_pyobj()", "recv_pyobj pickles"),
    ("pdcore.engine.x", "send = socket.send_pyobj", "send_pyobj pickles"),
    ("pdcore.engine.x", "torch.load(path)", "torch.load unpickles"),
    ("pdcore.engine.x", "np.load(path, allow_pickle=True)", "allow_pickle unpickles"),
    ("pdcore.engine.x", f"HOST = '{WILDCARD}'", f"{WILDCARD} is a wildcard address"),
    ("pdcore.engine.x", f"f'tcp://{WILDCARD}:{{port}}'", f"{WILDCARD} is a wildcard address"),
    ("pdcore.engine.x", f"b'tcp://{WILDCARD}'", f"{WILDCARD} is a wildcard address"),
    ("pdcore.engine.kv.x", "torch.device('npu:1')", "npu:1 names a device"),
    ("pdcore.engine.model.x", "if kind == 'cuda': ...", "cuda names a device"),
    ("pdcore.engine.x", "import torch_npu", "torch_npu is a device's plug-in"),
    ("pdcore.router.utils", "", "utils says nothing about what is in it"),
    ("pdcore.engine.common.x", "", "common says nothing about what is in it"),
    ("pdcore.engine.manager", "", "manager says nothing about what is in it"),
    ("pdcore.engine.x", "\n" * (MAX_MODULE_LINES + 1), "401 lines, more than 400"),
    ("pdcore.engine.x", "def f():\n" + "    g()\n" * MAX_FUNCTION_LINES, "f has 61 lines, more than 60"),
    (
        "pdcore.engine.x",
        "class A:\n    async def f(self):\n" + "        g()\n" * MAX_FUNCTION_LINES,
        "f has 61 lines, more than 60",
    ),
]


@pytest.mark.parametrize(("name", "text", "sentence"), BROKEN)
def test_a_broken_rule_is_seen(name: str, text: str, sentence: str) -> None:
    found = problems(name, text)
    assert any(problem.startswith(f"{name}:") and problem.endswith(f": {sentence}") for problem in found), (
        found
    )


FINE = [
    (
        "pdcore.topology.x",
        "from pdcore.errors import PdcoreError\nfrom pdcore.topology import _row, keys\nimport json",
    ),
    (
        "pdcore.registry.x",
        "from pdcore.topology.keys import Keyspace\nfrom pdcore.clock import Clock\nimport time",
    ),
    (
        "pdcore.router.x",
        "from pdcore.registry.follower import Follower\nfrom pdcore import __version__\nimport httpx",
    ),
    ("pdcore.engine.x", "import torch\nimport zmq\nmodel.eval()\nre.compile('x')"),
    ("pdcore.cli", "from pdcore.router.app import app\nfrom pdcore.engine import demo_model"),
    ("pdcore.__main__", "from pdcore.cli import main"),
    ("pdcore", "__version__ = '1'"),
    ("pdcore.registry.etcd.wire_pb2", "\n" * 1000),
    ("pdcore.engine.x", "\n" * MAX_MODULE_LINES),
    ("pdcore.engine.x", "def f():\n" + "    g()\n" * (MAX_FUNCTION_LINES - 1)),
]


@pytest.mark.parametrize(("name", "text"), FINE)
def test_what_is_allowed_is_left_alone(name: str, text: str) -> None:
    assert problems(name, text) == []
