"""Where the processes of one instance meet: addresses that its leader opens before anybody else of it runs.

On one machine these are files of a private directory; on several, ports of the leader's own address, bound before they
are told to anybody.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdcore.engine.placement import Placement

BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """``dispatch`` and ``parents`` are ZMQ addresses to bind; ``rendezvous_fd`` is rank 0.0.0's, for several machines."""

    dispatch: str
    parents: str
    rendezvous: str
    rendezvous_fd: int | None = None


@contextmanager
def open_meeting(placement: Placement, runtime_dir: Path, ip: str) -> Iterator[Meeting]:
    """The places for an instance whose leader is at ``ip``. Ranks that compute alone have no rendezvous."""
    alone = placement.sizes.group == 1
    if placement.nnodes == 1:
        yield Meeting(
            dispatch=f"ipc://{runtime_dir}/dispatch.sock",
            parents="",
            rendezvous="" if alone else f"file://{runtime_dir}/rendezvous",
        )
        return
    host = f"[{ip}]" if ":" in ip else ip
    tcp = f"tcp://{host}:*"
    if alone:
        yield Meeting(dispatch=tcp, parents=tcp, rendezvous="")
        return
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.create_server((ip, 0), family=family, backlog=BACKLOG) as listener:
        yield Meeting(
            dispatch=tcp,
            parents=tcp,
            rendezvous=f"tcp://{host}:{listener.getsockname()[1]}",
            rendezvous_fd=listener.fileno(),
        )
