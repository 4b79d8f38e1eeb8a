"""The order of a run: what is fast comes first, so that it fails first. And what has to stay in one process."""

from __future__ import annotations

from typing import Final

import pytest

ORDER: Final = ("unit", "contract", "integration", "model", "container", "cluster", "device")


@pytest.hookimpl(tryfirst=True)  # before the plugin that reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the slowest marker of each test; within one, tests stay as they are written.

    When several processes share a run, the tests of one file stay together, and so do those that share the fleet.
    """
    items.sort(key=_slowest)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        group = "fleet" if "whole_fleet" in fixtures else f"{item.path}:{_slowest(item)}"
        item.add_marker(pytest.mark.xdist_group(group))


def _slowest(item: pytest.Item) -> int:
    return max((place for place, marker in enumerate(ORDER) if item.get_closest_marker(marker)), default=0)
