"""Parents of registrars and their ranks, as processes a test owns."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from pdcore.registry import machine
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.topology.keys import RankPosition
from tests.support.eventually import eventually_now
from tests.support.registrations import FIRST, rank_process


def has_ended(pid: int) -> bool:
    return machine.process_started(pid) is None


class Parent:
    """A fake leader as a process of its own; whatever it started is ended with it."""

    def __init__(self, spec: RegistrarSpec, *, ranks: int = 1, url: str = "http://127.0.0.1:1") -> None:
        arguments = [msgspec.json.encode(spec).decode(), str(ranks), url]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fake_parent", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.registered: dict[str, Any] = {}

    def go(self) -> None:
        """Let it start: until then it has only loaded its code."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def block(self, how: str, seconds: float) -> None:
        """Keep it from doing anything else: ``loop`` in Python, ``native`` in a call that holds the interpreter."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how} {seconds}\n".encode())
        self.process.stdin.flush()

    def wait(self, event: str) -> dict[str, Any]:
        """Its next words, which are to be ``event``."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        said: dict[str, Any] = json.loads(line)
        assert said["event"] == event, said
        return said

    def wait_registered(self) -> dict[str, Any]:
        self.go()
        self.wait("claimed")
        self.registered = self.wait("registered")
        return self.registered

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        for pid in self.registered.get("ranks", []):
            eventually_now(partial(has_ended, pid), 5.0, f"rank {pid} gone")
        if self.registered:
            eventually_now(partial(has_ended, self.registered["registrar"]), 10.0, "registrar gone")


@contextlib.contextmanager
def parent(spec: RegistrarSpec, **options: Any) -> Iterator[Parent]:
    running = Parent(spec, **options)
    try:
        yield running
    finally:
        running.close()


@contextlib.contextmanager
def rank(registration: Registration, position: RankPosition = FIRST, *, beats: bool = True) -> Iterator[int]:
    """A rank process under ``registration``; its pid."""
    process = rank_process(registration.beat_pipe(position) if beats else None)
    pidfd = machine.open_pidfd(process.pid)
    registration.watch_process(position, pidfd)
    os.close(pidfd)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
