"""The ranks of one instance as processes of a test, started cheaply: torch is imported once, then forked.

A *program* is a function of a module that can be imported; its result comes back to the test.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

from pdcore.engine import collective, device
from pdcore.engine.collective import Groups, Rendezvous
from pdcore.engine.placement import Sizes
from pdcore.topology.keys import RankPosition

HERE: Final = "127.0.0.1"
START_S: Final = 60.0
_context: Final = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "tests.support.paged_generation"])


@dataclass(frozen=True)
class Place:
    """What a rank's program is told of itself."""

    position: RankPosition
    sizes: Sizes
    address: str
    listener: socket.socket | None
    argument: Any
    pipe: Connection

    def say(self, value: object) -> None:
        """Tell the test something before the result."""
        self.pipe.send((True, value))

    @contextmanager
    def joined(self, *, timeout_s: float = 30.0, start_s: float = START_S) -> Iterator[Groups]:
        """This rank's groups, as a rank process opens them."""
        with collective.join(
            self.meet(),
            self.position,
            self.sizes,
            device=device.select("cpu"),
            ip=HERE,
            start_s=start_s,
            timeout_s=timeout_s,
        ) as groups:
            yield groups

    def meet(self) -> Rendezvous:
        listen_fd = None if self.listener is None else self.listener.detach()
        number = self.sizes.number(self.position)
        return collective.meet(self.address, number, listen_fd=listen_fd, within_s=START_S)


Program = Callable[[Place], object]


@dataclass
class RankGroup:
    """Runs ``program`` as every rank of ``sizes`` within the block, but for the positions in ``absent``.

    They meet in ``directory``, or, when ``across`` machines, at a socket. Leaving kills what still runs.
    """

    program: Program
    sizes: Sizes
    directory: Path
    argument: Any = None
    across: bool = False
    absent: tuple[RankPosition, ...] = ()
    processes: dict[RankPosition, ForkServerProcess] = field(default_factory=dict, init=False)
    _pipes: dict[RankPosition, Connection] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        listener = socket.create_server((HERE, 0)) if self.across else None
        address = f"file://{self.directory / 'rendezvous'}"
        if listener is not None:
            address = "tcp://{}:{}".format(*listener.getsockname())
        for number, position in enumerate(self.sizes.positions()):
            if position in self.absent:
                continue
            ours, theirs = _context.Pipe()
            heard = listener if number == 0 else None
            place = Place(position, self.sizes, address, heard, self.argument, theirs)
            process = _context.Process(target=_main, args=(self.program, place), daemon=True)
            process.start()
            theirs.close()
            self.processes[position], self._pipes[position] = process, ours
        if listener is not None:
            listener.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join(10)
            process.close()
        for pipe in self._pipes.values():
            pipe.close()

    def result(self, position: RankPosition, within_s: float = START_S) -> Any:
        """What the rank's program returned, or the next thing it said; its traceback is the failure."""
        assert self._pipes[position].poll(within_s), f"rank {position} said nothing within {within_s} s"
        ended_well, value = self._pipes[position].recv()
        assert ended_well, f"rank {position}:\n{value}"
        return value

    def results(self, within_s: float = START_S) -> list[Any]:
        """The results of all ranks, in order of their numbers."""
        return [self.result(position, within_s) for position in self.processes]

    def signal(self, position: RankPosition, number: signal.Signals) -> None:
        pid = self.processes[position].pid
        assert pid is not None
        os.kill(pid, number)


def _main(program: Program, place: Place) -> None:
    torch.set_num_threads(1)
    try:
        place.say(program(place))
    except Exception:
        place.pipe.send((False, traceback.format_exc()))
