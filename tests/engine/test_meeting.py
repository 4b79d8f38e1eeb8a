"""Where an instance meets: files on one machine, ports of one address on several, nothing for ranks that are alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pdcore.engine.meeting import open_meeting
from pdcore.engine.placement import Sizes, place

pytestmark = pytest.mark.unit


def test_on_one_machine_everything_is_in_its_private_directory(tmp_path: Path) -> None:
    with open_meeting(place(Sizes(tp=2), 1, None), tmp_path, "10.0.0.1") as meeting:
        assert meeting.dispatch == f"ipc://{tmp_path}/dispatch.sock"
        assert (meeting.rendezvous, meeting.rendezvous_fd) == (f"file://{tmp_path}/rendezvous", None)


@pytest.mark.parametrize("nnodes", [1, 2])
def test_ranks_that_compute_alone_have_no_rendezvous(nnodes: int, tmp_path: Path) -> None:
    with open_meeting(place(Sizes(dp=2), nnodes, None), tmp_path, "127.0.0.1") as meeting:
        assert (meeting.rendezvous, meeting.rendezvous_fd) == ("", None)


def test_on_several_machines_the_rendezvous_listens_on_the_leaders_address_alone(tmp_path: Path) -> None:
    with open_meeting(place(Sizes(tp=2), 2, None), tmp_path, "127.0.0.1") as meeting:
        assert (meeting.dispatch, meeting.parents) == ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
        assert meeting.rendezvous_fd is not None
        with socket.socket(fileno=os.dup(meeting.rendezvous_fd)) as listens:
            host, port = listens.getsockname()
            assert (host, meeting.rendezvous) == ("127.0.0.1", f"tcp://127.0.0.1:{port}")
            socket.create_connection((host, port), timeout=5).close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(meeting.rendezvous_fd)
