"""Engines that nobody here knows, started by the commands of a custom group, behind our router and behind a user's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.cluster.group_stage import GROUP, Stage
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually_now

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.cluster]

ENGINE = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.say({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = {"remote_engine_id": "e", "remote_block_ids": [1], "remote_host": "127.0.0.1", "remote_port": 1}
        self.say({
            "id": "x", "object": "text_completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "text": sys.argv[2], "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            "kv_transfer_params": said,
        })

    def say(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
"""


def engine(role: str) -> str:
    return shlex.join([sys.executable, "-S", "-c", ENGINE, "{{port}}", role])


def custom(stage: Stage, router: Mapping[str, object]) -> Path:
    """A custom group's file."""
    path = stage.directory / "custom.yaml"
    spec = {
        "name": GROUP,
        "model": "m",
        "disaggregation": {"mode": "custom"},
        "backend": "custom",
        "roles": [
            {"name": "prefill", "run_command": engine("prefill")},
            {"name": "decode", "run_command": engine("decode")},
            {"name": "router", **router},
        ],
    }
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return path


def workers(stage: Stage) -> list[dict[str, Any]]:
    """Whom the router knows."""
    row = stage.member(f"{GROUP}-router-1")
    command = Path(f"/proc/{row['pid']}/cmdline").read_bytes().split(b"\0")
    port = command[command.index(b"--admin-port") + 1].decode()
    listed = httpx.get(f"http://127.0.0.1:{port}/workers", timeout=10, trust_env=False)
    return list(listed.json()["workers"])


def decodes(stage: Stage) -> Callable[[], list[str]]:
    def known() -> list[str]:
        return [one["url"] for one in workers(stage) if one["worker_type"] == "decode"]

    return known


def test_our_router_is_told_of_engines_that_come_and_go(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as etcd:
        stage = Stage(tmp_path, tmp_path, etcd)
        file = custom(stage, {"protocol": "nixl"})
        stage.group("apply", str(file))
        with stage.up(file):
            stage.wait_status(lambda now: now["state"] == "running", "running")
            answer = eventually_now(lambda: asked(stage), 30, "an answer") or {}
            assert answer["choices"][0]["text"] == "decode"
            known = decodes(stage)
            assert len(known()) == 1
            stage.group("scale", GROUP, "--decode", "2", "--wait")
            eventually_now(lambda: len(known()) == 2, 30, "two decodes known")
            stage.group("scale", GROUP, "--decode", "1", "--wait")
            eventually_now(lambda: len(known()) == 1, 30, "one decode known")
            assert asked(stage) is not None
            assert stage.pdcore("group", "restart", GROUP, "--blue-green").returncode == 2


def test_behind_a_users_own_router_people_are_told_what_to_do(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as etcd:
        stage = Stage(tmp_path, tmp_path, etcd)
        file = custom(stage, {"run_command": engine("router")})
        stage.group("apply", str(file))
        with stage.up(file):
            stage.wait_status(lambda now: now["state"] == "running", "running")
            by_hand = f"the router of {GROUP} is your own command, so its list of members is yours to keep"
            assert by_hand in stage.group("scale", GROUP, "--decode", "2", "--wait")
            assert by_hand in stage.group("restart", GROUP)
            assert by_hand in stage.group("delete", GROUP, "--yes")


def asked(stage: Stage) -> dict[str, Any] | None:
    """The answer to one request; None while there is none."""
    try:
        answer = httpx.post(
            f"{stage.url}/v1/completions", json={"model": "m", "prompt": "x"}, timeout=30, trust_env=False
        )
    except httpx.TransportError:
        return None
    return dict(answer.json()) if answer.status_code == 200 else None
