"""A ZMQ context and a private directory per test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.engine.transfer.ranks import Context


@pytest.fixture
def context() -> Iterator[Context]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """Short enough for a unix socket, unlike pytest's own directories."""
    with tempfile.TemporaryDirectory(prefix="pdx-") as path:
        yield Path(path)
