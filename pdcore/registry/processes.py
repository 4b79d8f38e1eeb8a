"""The processes a registrar watches: a pidfd each tells their exit, a pipe each carries their beats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from pdcore.clock import Clock
from pdcore.registry import machine
from pdcore.registry.beats import Beats
from pdcore.registry.registrar_messages import PARENT

_PIPE_BYTES: Final = 1 << 16


@dataclass(slots=True)
class _Descriptors:
    process: int | None = None
    beats: int | None = None


@dataclass(slots=True)
class Processes:
    """Owns the descriptors handed to it. ``on_change`` is called when a member exits and when a silent one beats.

    Beats of the others wait in their pipes until :meth:`look`: a rank may beat at every turn of its loop.
    Mutable: ``_members`` (their descriptors), ``exited``, ``silent`` (as of the last look), ``_beats``, ``_looked``.
    """

    limit_s: float
    clock: Clock
    on_change: Callable[[], None]
    exited: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    _members: dict[str, _Descriptors] = field(default_factory=dict)
    _beats: Beats = field(init=False)
    _looked: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    def __post_init__(self) -> None:
        self._beats = Beats(self.limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for member in list(self._members):
            self._drop_process(member)
            self._drop_beats(member)

    def watch(self, member: str, pidfd: int) -> None:
        """From now on ``member`` is the process behind ``pidfd``."""
        self._drop_process(member)
        self._members.setdefault(member, _Descriptors()).process = pidfd
        self.exited -= {member}
        asyncio.get_running_loop().add_reader(pidfd, self._exit, member)

    def listen(self, member: str, pipe: int) -> None:
        """From now on ``member`` beats on ``pipe``; the silence is counted from here."""
        self._drop_beats(member)
        os.set_blocking(pipe, False)
        self._members.setdefault(member, _Descriptors()).beats = pipe
        self._beats.heard(member, self.clock.now())

    def seen(self, member: str) -> None:
        """Its record appears now: it was alive a moment ago, whatever it could do while it loaded."""
        self._beats.seen(member, self.clock.now())

    def look(self) -> bool:
        """Read every waiting beat and judge who is silent; True when who exited or is silent differs from before.

        Beats are read first, because a process that was itself stopped finds old deadlines and fresh beats.
        """
        for member in list(self._members):
            self._read_beats(member)
        silent = self._beats.silent(self.clock.now())
        for member in silent - self.silent:
            self._await_voice(member)
        before, self.silent = self._looked, silent
        self._looked = (self.exited, self.silent)
        return self._looked != before

    def next_silence(self) -> float | None:
        """When somebody would fall silent next."""
        return self._beats.next_silence(self.clock.now())

    def has_exited(self, member: str) -> bool:
        """Asks the kernel; False for a member nobody gave a pidfd of."""
        held = self._members.get(member)
        if held is None or held.process is None:
            return member in self.exited
        return machine.has_exited(held.process)

    def kill_ranks(self) -> tuple[str, ...]:
        """SIGKILL every member but the parent; who was still there."""
        running = {
            member: held.process
            for member, held in self._members.items()
            if member != PARENT and held.process is not None
        }
        for pidfd in running.values():
            machine.kill(pidfd)
        return tuple(sorted(running))

    def kill_parent(self) -> None:
        """SIGKILL the parent; nothing happens when it is gone."""
        held = self._members.get(PARENT)
        if held is not None and held.process is not None:
            machine.kill(held.process)

    def _exit(self, member: str) -> None:
        self._drop_process(member)
        self._drop_beats(member)
        self.exited |= {member}
        self.on_change()

    def _read_beats(self, member: str) -> None:
        held = self._members[member]
        if held.beats is None:
            return
        try:
            data = os.read(held.beats, _PIPE_BYTES)
        except BlockingIOError:
            return
        if data:
            self._beats.heard(member, self.clock.now())
        else:
            self._drop_beats(member)

    def _await_voice(self, member: str) -> None:
        held = self._members[member]
        if held.beats is not None:
            asyncio.get_running_loop().add_reader(held.beats, self._hear_voice, held.beats)

    def _hear_voice(self, pipe: int) -> None:
        asyncio.get_running_loop().remove_reader(pipe)
        self.on_change()

    def _drop_process(self, member: str) -> None:
        held = self._members.get(member)
        if held is not None and held.process is not None:
            asyncio.get_running_loop().remove_reader(held.process)
            os.close(held.process)
            held.process = None

    def _drop_beats(self, member: str) -> None:
        """A pipe with no writer left proves nothing: whether the process lives, its pidfd tells."""
        self._beats.forget(member)
        held = self._members.get(member)
        if held is not None and held.beats is not None:
            asyncio.get_running_loop().remove_reader(held.beats)
            os.close(held.beats)
            held.beats = None
