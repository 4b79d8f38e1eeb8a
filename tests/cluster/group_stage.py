"""A group that `pdcore up` keeps, the commands an operator has for it, and clients that ask it all the time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess, free_port

GROUP: Final = "chat"
MODEL_NAME: Final = "tiny"
START_S: Final = 240.0
COMMAND_S: Final = 420.0
KV_TOKENS: Final = 65536


@dataclass
class Tally:
    """What clients were answered. ``failed`` tells each answer that was none."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)


class Clients:
    """``count`` clients in a thread of their own, each asking again as soon as it was answered."""

    def __init__(self, url: str, count: int, tokens: int) -> None:
        self._url = url
        self._count = count
        self._tokens = tokens
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        self.in_flight = 0
        self.tally = Tally()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Tally:
        """Ask no more; the tally once everything is answered."""
        self._stop.set()
        self._thread.join(COMMAND_S)
        assert not self._thread.is_alive(), f"{self.in_flight} requests were never answered"
        return self.tally

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=self._count, max_keepalive_connections=self._count)
        async with (
            httpx.AsyncClient(trust_env=False, timeout=COMMAND_S, limits=limits) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(self._count):
                tasks.create_task(self._one(client, number))

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            self.in_flight += 1
            why = await self._ask(client, f"client {number} asks {turn}")
            self.in_flight -= 1
            if why is None:
                self.tally.answered += 1
            else:
                self.tally.failed.append(why)

    async def _ask(self, client: httpx.AsyncClient, prompt: str) -> str | None:
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": self._tokens, "ignore_eos": True}
        try:
            answer = await client.post(f"{self._url}/v1/completions", json=body)
            if answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == self._tokens:
                return None
            return f"{answer.status_code}: {answer.text[:400]}"
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"


class Stage:
    """One group on one machine, from outside."""

    def __init__(self, directory: Path, model: Path, etcd: EtcdServer) -> None:
        self.directory = directory
        self.model = model
        self.etcd = etcd
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._ups = 0

    def file(self, prefill: int, decode: int, *flags: str, model: Path | None = None) -> Path:
        """A group's file."""
        path = self.directory / "group.yaml"
        flags = (f"--kv-tokens={KV_TOKENS}", "--lease-ttl-s=5", *flags)
        spec = {
            "name": GROUP,
            "model": str(model or self.model),
            "model_name": MODEL_NAME,
            "disaggregation": {"mode": "pdcore"},
            "backend_parameters": list(flags),
            "roles": [
                {"name": "prefill", "replicas": prefill},
                {"name": "decode", "replicas": decode},
                {"name": "router"},
            ],
        }
        path.write_text(yaml.safe_dump(spec), encoding="utf-8")
        return path

    def up(self, file: Path) -> ChildProcess:
        """Another supervisor of the group; it has still to be entered."""
        self._ups += 1
        arguments = [
            *(sys.executable, "-m", "pdcore", "up", str(file), "--store", self.etcd.url),
            *("--port", str(self.port), "--torch-threads", "1", "--log-level", "warning"),
        ]
        return ChildProcess(arguments, self.directory / f"up-{self._ups}.log")

    def pdcore(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command, run to its end."""
        return subprocess.run(
            [sys.executable, "-m", "pdcore", *arguments, "--store", self.etcd.url],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def group(self, *arguments: str) -> str:
        """A command of ``pdcore group`` that works; what it prints."""
        done = self.pdcore("group", *arguments)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, Any]:
        """``pdcore group status --json``."""
        read: dict[str, Any] = json.loads(self.group("status", GROUP, "--json"))
        return read

    def wait_status(
        self, holds: Callable[[dict[str, Any]], bool], what: str, within_s: float = START_S
    ) -> dict[str, Any]:
        """The first status for which it ``holds``."""

        def found() -> dict[str, Any] | None:
            now = self.status()
            return now if holds(now) else None

        read = eventually_now(found, within_s, what)
        assert read is not None
        return read

    def wait_full(self) -> dict[str, Any]:
        """Running with every member that is wished for, nothing under way."""
        return self.wait_status(is_full, "every member ready")

    def member(self, name: str) -> dict[str, Any]:
        """The row of one member."""
        (row,) = [row for row in self.status()["members"] if row["member"] == name]
        return dict(row)

    def ask(self, **fields: object) -> httpx.Response:
        """One request."""
        body = {"model": MODEL_NAME, "prompt": "who is here", "max_tokens": 4, "temperature": 0, **fields}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60, trust_env=False)

    def seen_by_router(self) -> dict[str, Any]:
        """The router's view."""
        admin_url = self.record(f"routers/{GROUP}-router-1")["admin_url"]
        read: dict[str, Any] = httpx.get(f"{admin_url}/pdcore/topology", timeout=30, trust_env=False).json()
        return read

    def put(self, key: str, value: Mapping[str, object]) -> None:
        """Write below the view, as anybody with access to etcd can."""
        self.etcd.etcdctl("put", f"/pdcore/default/view/{key}", json.dumps(value))

    def record(self, key: str) -> dict[str, Any]:
        """What stands there."""
        read: dict[str, Any] = json.loads(
            self.etcd.etcdctl("get", "--print-value-only", f"/pdcore/default/view/{key}")
        )
        return read

    @contextmanager
    def asked(self, count: int, tokens: int) -> Iterator[Clients]:
        """Clients ask while the block lasts, every one of them before it begins."""
        clients = Clients(self.url, count, tokens)
        clients.start()
        try:
            eventually_now(lambda: clients.in_flight == count, 60, f"{count} requests in flight")
            yield clients
        finally:
            began = time.monotonic()
            tally = clients.stop()
            print(
                f"{tally.answered} answered, {len(tally.failed)} failed, {time.monotonic() - began:.1f} s to end"
            )
        assert tally.failed == []
        assert tally.answered > count


def is_full(now: Mapping[str, Any]) -> bool:
    """Whether everything that is wished for is there and nothing is under way."""
    counts = now["roles"].values()
    return (
        now["state"] == "running"
        and now["restart"] is None
        and all(one["ready"] == one["desired"] and one["draining"] == 0 for one in counts)
    )


def engines(now: Mapping[str, Any]) -> list[str]:
    """The ids of the prefill and decode members of a status."""
    return [row["member"] for row in now["members"] if row["role"] != "router"]
