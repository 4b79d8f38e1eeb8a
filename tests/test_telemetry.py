"""What a process writes to standard error."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from pdcore import telemetry
from tests.support.eventually import eventually

pytestmark = pytest.mark.integration

_SPEAK = r"""
import logging, os, sys
from pdcore import telemetry
telemetry.configure(sys.argv[1], "warning" if "quiet" in sys.argv else "info", role="router")
log = telemetry.logger("a.module")
with telemetry.bound(room=7):
    log.info("said", revision=3)
log.info("odd", half="\ud800", letters="ü", thing=ValueError)
log.info("huge", number=2**70)
telemetry.record("request", {"room": 7, "half": "\ud800", "thing": ValueError})
log.debug("not said")
if "hostile" in sys.argv:
    log.info("read", key="a\x1b[31mred\x01\nb")
logging.getLogger("some.library").warning("%s heard", "also")
try:
    raise ValueError("broken")
except ValueError:
    log.exception("caught")
if "deaf" in sys.argv:
    os.close(2)
    log.info("to nobody")
print("ended")
"""


def spoken(*arguments: str) -> list[str]:
    """Standard error's lines of a process that says a few things and must live to its end."""
    done = subprocess.run(
        [sys.executable, "-c", _SPEAK, *arguments], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "ended\n"
    return done.stderr.splitlines()


def test_our_lines_and_a_librarys_are_objects_of_one_shape() -> None:
    said, odd, huge, often, library, caught = map(json.loads, spoken("json"))
    assert (said["event"], said["level"], said["role"]) == ("said", "info", "router")
    assert (said["room"], said["revision"]) == (7, 3)
    assert (odd["half"], odd["letters"], odd["thing"]) == ("\ud800", "ü", "<class 'ValueError'>")
    assert huge["number"] == 2**70
    assert (often["room"], often["half"], often["thing"]) == (7, "\ud800", "<class 'ValueError'>")
    assert set(often) - {"room", "half", "thing"} == set(library)
    assert (often["event"], often["level"], often["role"]) == ("request", "info", "router")
    assert len(often["timestamp"]) == len(said["timestamp"])
    assert (library["event"], library["level"], library["role"]) == ("also heard", "warning", "router")
    assert (caught["event"], caught["level"]) == ("caught", "error")
    assert "ValueError: broken" in caught["exception"]
    assert set(said) - {"room", "revision"} == set(library) == set(caught) - {"exception"}


def test_text_begins_with_the_instant_the_level_and_the_event() -> None:
    first = spoken("text")[0].split(" ")
    assert [word.partition("=")[0] for word in first[:3]] == ["timestamp", "level", "event"]
    assert {"room=7", "revision=3", "role=router"} <= set(first)


def test_what_happens_all_the_time_is_said_as_everything_else_is() -> None:
    as_json = [json.loads(line)["event"] for line in spoken("json")]
    as_text = [line.partition("event=")[2].partition(" ")[0].strip('"') for line in spoken("text")[:4]]
    assert as_json[3] == as_text[3] == "request"
    assert not any("event=request" in line for line in spoken("text", "quiet"))
    assert not any("request" in line for line in spoken("json", "quiet"))


def test_no_text_of_others_reaches_a_terminal_as_it_is() -> None:
    lines = spoken("text", "hostile")
    assert all(line.isprintable() for line in lines)
    assert any(r"a\x1b[31mred\x01\nb" in line for line in lines)


def test_a_process_whose_lines_nobody_reads_goes_on() -> None:
    assert len(spoken("json", "deaf")) == 6


async def test_lines_that_may_wait_are_written_soon_and_overtaken_by_none() -> None:
    stream = io.StringIO()
    lines = telemetry._Lines(stream)
    lines.later("a")
    lines.later("b")
    assert stream.getvalue() == ""
    lines.info("c")
    assert stream.getvalue() == "a\nb\nc\n"
    lines.later("d")
    await eventually(lambda: stream.getvalue().endswith("d\n"), 5, "the last one is written too")
    lines.later("e")
    lines.write()
    assert stream.getvalue() == "a\nb\nc\nd\ne\n"


def test_without_a_loop_nothing_waits() -> None:
    stream = io.StringIO()
    telemetry._Lines(stream).later("a")
    assert stream.getvalue() == "a\n"
