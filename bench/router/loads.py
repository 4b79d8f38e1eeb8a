"""What is asked of a router, and what is measured meanwhile. Figures are per request or per chunk."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.router.processes import CHAT, LOAD_CORE, Engines, Router, Running, request
from bench.router.targets import HERE, PEERS

STREAM_WARM_UP_S: Final = 1.5
COUNTERS: Final = struct.Struct("5Q")  # events, reads, bytes, good requests, requests

Sample = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Complete answers, as many at once as there are connections."""

    connections: int
    prompt_bytes: int

    @property
    def name(self) -> str:
        return f"{self.prompt_bytes // 1024} KB, {self.connections} at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Streams that do not end, a chunk per interval each."""

    connections: int
    interval_us: int
    spread: bool

    @property
    def name(self) -> str:
        return f"{self.connections} streams, a chunk per {self.interval_us / 1000:g} ms"


Load = Requests | Streams


def measure(
    load: Load, router: Running, port: int, engines: Engines, seconds: float, scratch: Path
) -> Sample:
    """One repetition of ``load`` on the router at ``port``."""
    router.wait_idle()
    if isinstance(load, Requests):
        return _requests(load, router, port, engines, seconds, scratch)
    return _streams(load, router, port, engines, seconds, scratch)


def warm_up(port: int, scratch: Path) -> None:
    """A second of ordinary load that nobody looks at."""
    _wrk(Requests(connections=16, prompt_bytes=1024), port, 1, scratch)


def _requests(
    load: Requests, router: Running, port: int, engines: Engines, seconds: float, scratch: Path
) -> Sample:
    served, used = engines.served()["decode"], router.cpu_s()
    seen = _wrk(load, port, seconds, scratch)
    rss_mb = router.rss_mb()
    router.wait_idle()
    count = max(1, engines.served()["decode"] - served)
    failed = sum(seen[kind] for kind in ("connect", "read", "write", "status", "timeout"))
    return {
        "cpu_us": (router.cpu_s() - used) * 1e6 / count,
        "per_s": seen["req"] / seen["dur_us"] * 1e6,
        "p50_ms": seen["p50"] / 1e3,
        "p99_ms": seen["p99"] / 1e3,
        "rss_mb": rss_mb,
        "failed": failed,
    }


def _wrk(load: Requests, port: int, seconds: float, scratch: Path) -> Mapping[str, float]:
    body = scratch / f"body-{load.prompt_bytes}.json"
    body.write_bytes(request(load.prompt_bytes))
    arguments = [
        *(
            "taskset",
            "-c",
            str(LOAD_CORE),
            "wrk",
            "-t1",
            f"-c{load.connections}",
            f"-d{max(1, round(seconds))}s",
        ),
        *("--timeout", "20s", "-s", str(HERE / "post.lua"), f"http://127.0.0.1:{port}{CHAT}"),
    ]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=True, env={**os.environ, "BODY": str(body)}
    )
    counts: Mapping[str, float] = json.loads(done.stdout.split("JSON", 1)[1])
    return counts


def _streams(
    load: Streams, router: Running, port: int, engines: Engines, seconds: float, scratch: Path
) -> Sample:
    engines.pace(load.interval_us, spread=load.spread)
    counters = scratch / "counters"
    arguments = [
        *("taskset", "-c", str(LOAD_CORE), str(PEERS / "lg"), "--port", str(port), "--stream"),
        *("--conc", str(load.connections), "--duration", f"{STREAM_WARM_UP_S + seconds + 0.2:g}"),
        *("--max-tokens", "1000000", "--shm", str(counters)),
    ]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as load_process:
        time.sleep(STREAM_WARM_UP_S)
        events, reads = _counted(counters)
        used, began = router.cpu_s(), time.monotonic()
        time.sleep(seconds)
        more, later_reads = _counted(counters)
        took, cpu_s, rss_mb = time.monotonic() - began, router.cpu_s() - used, router.rss_mb()
        said: Any = json.loads(load_process.communicate()[0])
    engines.pace(0, spread=False)
    count = max(1, more - events)
    return {
        "cpu_us": cpu_s * 1e6 / count,
        "per_s": count / took,
        "p50_ms": said["gap_us"]["p50"] / 1e3,
        "p99_ms": said["gap_us"]["p99"] / 1e3,
        "rss_mb": rss_mb,
        "failed": sum(said["errors"].values()),
        "merged": count / max(1, later_reads - reads),
    }


def _counted(counters: Path) -> tuple[int, int]:
    events, reads, *_ = COUNTERS.unpack(counters.read_bytes()[: COUNTERS.size])
    return events, reads


def at_rest(router: Router) -> Sample:
    """Before the first load: memory, and how long it took to answer for the first time."""
    return {"rss_mb": router.rss_mb(), "started_s": router.started_s}
