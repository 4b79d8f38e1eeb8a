"""`pdcore up` with everything real: etcd, engines on a tiny model, a router."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pdcore.group.launch.child import session_members
from tests.support.etcd_server import require_etcd
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess
from tests.support.tiny_models import write_tiny_llama

pytestmark = [pytest.mark.integration, pytest.mark.slow]

START_S = 120.0
END_S = 30.0


@pytest.fixture
def places() -> Iterator[dict[str, str]]:
    """Temporary files of every member go below one directory, so that what is left can be seen.

    Its path is short because sockets lie in it.
    """
    with tempfile.TemporaryDirectory(prefix="up-") as directory:
        yield {"TMPDIR": directory, "PDCORE_TORCH_THREADS": "1", "PDCORE_KV_TOKENS": "4096"}


@pytest.fixture
def cluster(tmp_path: Path, places: dict[str, str]) -> Iterator[ChildProcess]:
    require_etcd()
    model = write_tiny_llama(tmp_path / "tiny")
    arguments = [
        sys.executable,
        "-m",
        "pdcore",
        "up",
        "--model",
        str(model),
        "--model-name",
        "tiny",
        "--port",
        "0",
    ]
    with ChildProcess(arguments, tmp_path / "up.log", environ=places) as child:
        yield child


def url_of(cluster: ChildProcess) -> str:
    def found() -> re.Match[str] | None:
        assert cluster.running, cluster.output()[-3000:]
        return re.search(r"router: (http://\S+)", cluster.output())

    match = eventually_now(found, START_S, "a router's address in the log")
    assert match is not None
    return match[1]


def sessions_of(cluster: ChildProcess) -> list[int]:
    """The members: direct children of the supervisor, each leading a session."""
    children = Path(f"/proc/{cluster.pid}/task/{cluster.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in children.split()]


@pytest.mark.cluster
def test_a_cluster_serves_restarts_a_member_and_ends_without_a_trace(
    cluster: ChildProcess, places: dict[str, str]
) -> None:
    url = url_of(cluster)
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    assert _complete(url, body) == 200

    sessions = sessions_of(cluster)
    assert len(sessions) == 4
    (decode,) = [pid for pid in sessions if b"decode-1" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(decode, signal.SIGKILL)
    eventually_now(lambda: "decode-1 was ended by signal 9; starting it again now" in cluster.output(), END_S)
    eventually_now(lambda: decode not in sessions_of(cluster) and len(sessions_of(cluster)) == 4, END_S)
    eventually_now(lambda: _complete(url, body) == 200, START_S, "served by the new decode")

    sessions += sessions_of(cluster)
    cluster.signal(signal.SIGINT)
    assert cluster.wait(END_S) == 0
    assert [pid for session in sessions for pid in session_members(session)] == []
    assert os.listdir(places["TMPDIR"]) == []


def _complete(url: str, body: dict[str, object]) -> int:
    try:
        return httpx.post(f"{url}/v1/completions", json=body, timeout=30, trust_env=False).status_code
    except httpx.TransportError:
        return 0


def test_a_model_that_is_not_there_ends_everything_with_its_line(
    tmp_path: Path, places: dict[str, str]
) -> None:
    require_etcd()
    arguments = [sys.executable, "-m", "pdcore", "up", "--model", str(tmp_path / "nowhere"), "--port", "0"]
    with ChildProcess(arguments, tmp_path / "up.log", environ=places) as child:
        assert child.wait(START_S) == 2
    last = child.output().splitlines()[-1]
    assert last.startswith("pdcore up: ")
    assert str(tmp_path / "nowhere") in last
    assert "Traceback" not in child.output()
    assert os.listdir(places["TMPDIR"]) == []
