"""What holds for every test: the order of a run (what is fast comes first, so that it fails first), whose assertions
explain themselves, and that a child process hears of Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.logs import forget_configuration

for contract in ("store_contract", "load_contract", "fault_contract"):
    pytest.register_assert_rewrite(f"tests.registry.{contract}")

ORDER: Final = ("unit", "contract", "integration", "model", "container", "cluster", "device")


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """No test logs where an earlier one was told to."""
    yield
    forget_configuration()


def pytest_configure() -> None:
    """A run that a shell put into the background ignores SIGINT, and whatever it starts would too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the slowest marker of each test; within one, tests stay as they are written."""
    items.sort(key=_slowest)


def _slowest(item: pytest.Item) -> int:
    return max((place for place, marker in enumerate(ORDER) if item.get_closest_marker(marker)), default=0)
