"""Devices that are not here skip their tests, each with the reason that an engine would end with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdcore.engine import device as devices
from pdcore.engine.device import Device
from pdcore.errors import ConfigError


@pytest.fixture(params=["npu", "cuda"])
def device(request: pytest.FixtureRequest) -> Device:
    try:
        return devices.select(request.param)
    except ConfigError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """Short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="pdx-") as path:
        yield Path(path)
