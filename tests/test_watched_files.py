"""Files that change under a running process: the new one counts, a broken one never does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pdcore.errors import ConfigError
from pdcore.watched_files import WatchedFiles

pytestmark = pytest.mark.unit


def number(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))


def watched(path: Path) -> WatchedFiles[int]:
    return WatchedFiles((path,), lambda: number(path), "--number / PDCORE_NUMBER")


def test_a_change_counts_from_the_next_look_on(tmp_path: Path) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    one = watched(path)
    one.load()
    assert one.value == 1
    path.write_text("23")
    assert one.value == 1
    one.refresh()
    assert (one.value, one.error) == (23, None)


def test_a_replaced_file_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    path, other = tmp_path / "n", tmp_path / "other"
    path.write_text("1")
    other.write_text("2")
    one = watched(path)
    one.load()
    state = path.stat()
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.rename(path)
    one.refresh()
    assert one.value == 2


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("x"), lambda path: path.unlink()])
def test_a_file_that_cannot_be_read_any_more_leaves_what_was_read(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "n"
    path.write_text("1")
    one = watched(path)
    one.load()
    assert callable(spoil)
    spoil(path)
    for _ in range(2):
        one.refresh()
        assert one.value == 1
        assert one.error is not None
    path.write_text("2")
    one.refresh()
    assert (one.value, one.error) == (2, None)


@pytest.mark.parametrize("content", [None, b"x", b"\xff"])
def test_at_the_start_it_is_the_settings_fault(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "n"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as wrong:
        watched(path).load()
    (problem,) = wrong.value.problems
    assert problem.startswith(f"--number / PDCORE_NUMBER: {path}: ")
