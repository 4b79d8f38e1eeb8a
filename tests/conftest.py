"""What holds for every test: the order of a run (what is fast comes first, so that it fails first), which tests share a
process of a parallel run, whose assertions explain themselves, and what child processes do not inherit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support.logs import forget_configuration

for contract in ("store_contract", "load_contract", "fault_contract"):
    pytest.register_assert_rewrite(f"tests.registry.{contract}")

ORDER: Final = ("unit", "contract", "integration", "model", "container", "cluster", "device")
TOGETHER: Final = ("tests/cluster/", "tests/engine/model/", "tests/container/")
"""Directories whose tests share what costs seconds to start: a fleet, a tensor library's reference, a Docker engine."""


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """No test logs where an earlier one was told to."""
    yield
    forget_configuration()


def pytest_configure() -> None:
    """What a run inherits and its children shall not: ignoring SIGINT, as in a shell's background, and a terminal's width."""
    os.environ.pop("COLUMNS", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by the slowest marker of each test; within one, tests stay as they are written. One process of a parallel run
    begins with what takes longest, and the others do the fast ones meanwhile."""
    items.sort(key=_slowest)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: scope(item.nodeid) not in TOGETHER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A process runs whole files, or all files that share something, in the order of the collection."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist is untyped
    """Says what must stay in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """The tests that run in one process with ``nodeid``."""
    return next((shared for shared in TOGETHER if nodeid.startswith(shared)), nodeid.split("::", 1)[0])


def _slowest(item: pytest.Item) -> int:
    return max((place for place, marker in enumerate(ORDER) if item.get_closest_marker(marker)), default=0)
