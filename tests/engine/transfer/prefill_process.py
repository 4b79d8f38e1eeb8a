"""A prefill rank in a process of its own, for tests that stop and kill it.

    python -m tests.engine.transfer.prefill_process RUNTIME_DIR [gate …]

It prints its endpoint as JSON, then a line per event. Lines on standard input command it: ``expect ROOM`` brings the
leg of a room, ``go`` opens the gate at which a writer thread waits, ``fail ROOM`` ends a leg. Gates: ``hold`` never
sends, ``ahead`` sends the first block and then no more, ``kv`` waits in the middle of the KV write, ``slot`` waits
between the KV and the slot.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import zmq

from pdcore.engine.transfer.memory import on_host
from pdcore.engine.transfer.orders import Handshaken
from pdcore.engine.transfer.plan import Buffer, WriteOps
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.shm_sender import ShmSender
from tests.engine.transfer import ranks


def say(line: str) -> None:
    """One whole line, from any thread."""
    os.write(1, line.encode() + b"\n")


class GatedSender(ShmSender):
    """Waits where it is told to, in the writer's thread."""

    def __init__(self, source: memoryview, runtime_dir: Path) -> None:
        super().__init__(source, runtime_dir)
        self.gates: set[str] = set()
        self.opened = threading.Event()

    def wait_at(self, gate: str) -> None:
        """Say where, then wait for ``go``."""
        if gate in self.gates:
            say(f"gate {gate}")
            self.opened.wait(60)

    def inline_bytes(self, token: bytes) -> int:
        return 0

    def write(self, token: bytes, ops: WriteOps, seq: int) -> None:
        for turn in range(len(ops)):
            if turn == 1:
                self.wait_at("kv")
            part = slice(turn, turn + 1)
            super().write(token, WriteOps(ops.src_off[part], ops.dst_off[part], ops.length[part]), seq)

    def write_bytes(self, token: bytes, offset: int, data: bytes, seq: int) -> None:
        self.wait_at("slot")
        super().write_bytes(token, offset, data, seq)


class GatedEngine(ShmEngine):
    """``shm`` with gates."""

    gates: frozenset[str] = frozenset()
    made: GatedSender

    def sender(self, source: Buffer, runtime_dir: Path) -> GatedSender:
        made = GatedSender(on_host(source), runtime_dir)
        object.__setattr__(self, "made", made)
        return made


def obey(line: str, prefill: ranks.Prefill, sender: GatedSender) -> None:
    """Do what the test says."""
    word, _, room = line.partition(" ")
    if word == "go":
        sender.opened.set()
    elif word == "expect":
        prefill.expect(int(room), ranks.tokens_of(int(room)))
    elif word == "fail":
        prefill.fail(int(room), "cancelled", "told to")


def main() -> None:
    """Turn the loop until standard input closes."""
    runtime_dir, gates = Path(sys.argv[1]), set(sys.argv[2:])
    engine = GatedEngine()
    with zmq.Context() as context, ranks.sending(context, runtime_dir, engine=engine) as session:
        sender = engine.made
        sender.gates = gates
        prefill = ranks.Prefill(session, sends=not gates & {"hold", "ahead"})
        say(json.dumps(session.endpoint))
        poller = zmq.Poller()
        for pollable in [0, *session.pollables()]:
            poller.register(pollable, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(50))
            if 0 in ready:
                lines = os.read(0, 4096).decode().splitlines()
                if not lines:
                    return
                for line in lines:
                    obey(line, prefill, sender)
            prefill.turn()
            for event in prefill.events:
                say(repr(event))
                if "ahead" in gates and isinstance(event, Handshaken):
                    prefill.send_ahead(event.room, ranks.LAYOUT.block_size)
                    gates = {"sent ahead"}
            prefill.events.clear()
            if "sent ahead" in gates and not session.statistics().writing:
                say("gate ahead")
                gates = set()


if __name__ == "__main__":
    main()
