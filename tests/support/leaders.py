"""Real leaders with fake ranks, for tests of what leaders do."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from tests.support.cluster import Cluster, Engine
from tests.support.etcd_server import EtcdServer
from tests.support.processes import free_port


class Leaders:
    """Starts leaders of one cluster name on ``etcd`` and ends them all."""

    def __init__(self, etcd: EtcdServer, directory: Path, model: Path) -> None:
        self._directory = directory
        self._model = model
        self._stack = ExitStack()
        self._count = 0
        self.etcd = etcd
        self.cluster = Cluster(directory, model, store=etcd.url, cluster=directory.name)
        self.cluster.etcd = etcd

    def close(self) -> None:
        self._stack.close()

    def start(self, role: str, *flags: str, port: int | None = None, model: Path | None = None) -> Engine:
        """A leader; it may not be ready yet."""
        port = port or free_port()
        self._count += 1
        instance_id = f"{role}-127.0.0.1-{port}"
        arguments = [
            *(sys.executable, "-m", "tests.support.fake_engine", "--role", role, "--store", self.etcd.url),
            *(
                "--cluster",
                self.cluster.cluster,
                "--model",
                str(model or self._model),
                "--model-name",
                "tiny",
            ),
            *("--port", str(port), "--bootstrap-port", "0", "--lease-ttl-s", "5", *flags),
        ]
        engine = Engine(arguments, self._directory / f"{self._count}-{role}.log", port, instance_id)
        return self._stack.enter_context(engine)
