"""The order of a run: what is fast comes first, so that it fails first."""

from __future__ import annotations

from typing import Final

import pytest

ORDER: Final = ("unit", "contract", "integration", "model", "container", "cluster", "device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the slowest marker of each test; within one, tests stay as they are written."""
    items.sort(key=_slowest)


def _slowest(item: pytest.Item) -> int:
    return max((place for place, marker in enumerate(ORDER) if item.get_closest_marker(marker)), default=0)
