"""A whole cluster of real processes for a test: etcd, engines, routers, on free loopback ports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import httpx
import psutil

from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually_now
from tests.support.namespaces import Machine
from tests.support.processes import ChildProcess, free_port

ServedT = TypeVar("ServedT", bound="Served")
START_S: Final = 120.0  # three engines and their ranks take 25 s of CPU, on a machine that may be busy
HERE: Final = "127.0.0.1"
_client: Final = httpx.Client(trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=0))
_SAMPLE: Final = re.compile(
    r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.e+-]+)$", re.MULTILINE
)


class Served(ChildProcess):
    """A process with an HTTP address. ``at_rest_zero`` names the gauges that are 0 when nothing runs."""

    at_rest_zero: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        port: int,
        host: str = HERE,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(arguments, log, environ={"PDCORE_TORCH_THREADS": "1", **(environ or {})})
        self.port = port
        self.url = f"http://{host}:{port}"

    def get(self, path: str) -> httpx.Response | None:
        """The answer, or None while nobody listens."""
        try:
            return _client.get(self.url + path, timeout=5)
        except httpx.TransportError:
            return None

    def is_ready(self) -> bool:
        answer = self.get("/ready")
        return answer is not None and answer.status_code == 200

    def wait_ready(self, within_s: float = START_S) -> Self:
        """Return once ``/ready`` says 200; the process's log is part of the failure."""
        try:
            eventually_now(lambda: self.is_ready() or not self.running, within_s, f"{self.url} ready")
            assert self.running, f"exited with {self.returncode}"
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.output()[-4000:]}") from None
        return self

    def gauge(self, name: str, **labels: str) -> float:
        """The sum of ``name``'s samples that carry ``labels`` in ``/metrics``; 0 when there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(sample["value"])
            for sample in _SAMPLE.finditer(self._metrics())
            if sample["name"] == name and all(w in (sample["labels"] or "") for w in wanted)
        )

    def leftovers(self) -> dict[str, float]:
        """Every gauge that must be zero when nothing runs, and is not."""
        samples = [s for s in _SAMPLE.finditer(self._metrics()) if s["name"] in self.at_rest_zero]
        return {s["name"]: float(s["value"]) for s in samples if float(s["value"])}

    def _metrics(self) -> str:
        answer = self.get("/metrics")
        assert answer is not None, f"{self.url} does not answer"
        return answer.text


class Engine(Served):
    """One instance."""

    at_rest_zero = frozenset(
        f"pdcore_engine_{name}"
        for name in (
            *("kv_blocks_used", "kv_blocks_quarantined", "slots_used", "rooms"),
            *("running", "bootstrap", "prealloc", "transfer", "retracted", "http_in_flight"),
        )
    )

    def __init__(
        self, arguments: list[str], log: Path, port: int, instance_id: str, host: str = HERE
    ) -> None:
        super().__init__(arguments, log, port, host)
        self.instance_id = instance_id

    @property
    def incarnation(self) -> str:
        """Of the start that answers now."""
        answer = self.get("/health")
        assert answer is not None, f"{self.url} does not answer"
        return str(answer.json()["incarnation"])

    def ranks(self) -> list[psutil.Process]:
        """Its rank processes that live."""
        try:
            children = psutil.Process(self.pid).children()
            return [child for child in children if "pdcore.engine.rank" in child.cmdline()]
        except psutil.NoSuchProcess:
            return []


class Router(Served):
    """One router."""

    at_rest_zero = frozenset({"pdcore_router_in_flight"})

    def post(self, path: str, body: Mapping[str, object], timeout_s: float = 60) -> httpx.Response:
        return _client.post(self.url + path, json=dict(body), timeout=timeout_s)


def _decoded(value: str) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except ValueError:
        return {"text": value}
    return document if isinstance(document, dict) else {"value": document}


class Cluster:
    """Starts processes by role; leaving ends all of them, the newest first, and etcd last.

    etcd has its address from the beginning but is started by the test.
    """

    def __init__(
        self, directory: Path, model: Path, *, store: str | None = None, cluster: str = "test"
    ) -> None:
        self.directory = directory
        self.model = model
        self.cluster = cluster
        self._given_store = store
        self._stack = ExitStack()
        self._count = 0
        self._routers: list[Router] = []
        self.etcd = EtcdServer(directory)

    def __enter__(self) -> Self:
        if self._given_store is None:
            self.etcd.reserve()
            self._stack.callback(self.etcd.stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def store(self) -> str:
        return self._given_store or self.etcd.url

    def engine(
        self,
        role: str,
        *flags: str,
        model: Path | None = None,
        port: int | None = None,
        on: Machine | None = None,
    ) -> Engine:
        """Start an instance, here or ``on`` another machine; it may not be ready yet."""
        port = port or free_port()
        instance_id = f"{role}-{port}"
        arguments = [
            *(sys.executable, "-m", "pdcore.engine", "--role", role),
            *("--store", self.store, "--cluster", self.cluster),
            *("--model", str(model or self.model), "--model-name", "tiny"),
            *("--port", str(port), "--bootstrap-port", "0", "--instance-id", instance_id),
            *("--kv-tokens", "16384", "--lease-ttl-s", "5", *flags),
        ]
        if on is not None:
            arguments = [*on.run, *arguments, "--host", on.address]
        host = HERE if on is None else on.address
        return self._start(Engine(arguments, self._log(instance_id), port, instance_id, host))

    def router(self, *flags: str, port: int | None = None) -> Router:
        """Start a router; it may not be ready yet."""
        port = port or free_port()
        arguments = [
            *(sys.executable, "-m", "pdcore.router", "--store", self.store, "--cluster", self.cluster),
            *("--port", str(port), *flags),
        ]
        router = self._start(Router(arguments, self._log(f"router-{port}"), port))
        self._routers.append(router)
        return router

    def keyspace(self) -> dict[str, dict[str, Any]]:
        """The view as an operator reads it with ``etcdctl get --prefix``: key below ``view/`` to decoded value."""
        prefix = f"/pdcore/{self.cluster}/view/"
        lines = subprocess.run(
            ["etcdctl", f"--endpoints={self.etcd.endpoint}", "get", "--prefix", prefix],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return {key.removeprefix(prefix): _decoded(value) for key, value in pairs}

    def instance_keys(self, instance_id: str) -> list[str]:
        """The instance's own keys that exist, its departure not counted."""
        mine = (f"instances/{instance_id}", f"ranks/{instance_id}/")
        return [key for key in self.keyspace() if key.startswith(mine)]

    def bootstrap(self, prefill: Engine) -> dict[str, object]:
        """The request fields that pin a request to ``prefill``."""
        record = self.keyspace()[f"instances/{prefill.instance_id}"]
        return {key: record[key] for key in ("bootstrap_host", "bootstrap_port")}

    def only_router(self) -> Router:
        """The one router started so far."""
        (router,) = self._routers
        return router

    def pair(self, *flags: str) -> tuple[Engine, Engine, Router]:
        """One prefill, one decode and one router, all ready."""
        prefill, decode, router = self.engine("prefill", *flags), self.engine("decode", *flags), self.router()
        return prefill.wait_ready(), decode.wait_ready(), router.wait_ready()

    def _start(self, process: ServedT) -> ServedT:
        self._stack.enter_context(process)
        return process

    def _log(self, name: str) -> Path:
        self._count += 1
        return self.directory / f"{self._count:02}-{name}.log"
