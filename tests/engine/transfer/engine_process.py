"""One end of a transfer engine in a process of its own, for tests that stop and kill it.

    python -m tests.engine.transfer.engine_process sender|receiver ENGINE RUNTIME_DIR

Each line of standard input is a JSON list, a method's name and its arguments; each gets one line of JSON in answer.
"""

from __future__ import annotations

import json
import mmap
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np

from pdcore.engine.transfer.engine import Receiver, Sender, TransferEngine
from pdcore.engine.transfer.memfabric import MemfabricEngine
from pdcore.engine.transfer.memfabric_library import Terms
from pdcore.engine.transfer.memory import Region
from pdcore.engine.transfer.mooncake import MooncakeEngine
from pdcore.engine.transfer.plan import WriteOps
from pdcore.engine.transfer.shm import ShmEngine
from pdcore.engine.transfer.tcp import TcpEngine
from pdcore.errors import PeerError
from tests.support.fake_ascend import FakeMooncake, Machine, memfabric

NBYTES: Final = 32 << 20
BLOCK: Final = 4096
SLOT: Final = NBYTES - BLOCK
TCP_TIMEOUT_S: Final = 1.0
IP: Final = "127.0.0.1"


def engine_named(name: str, directory: Path) -> TransferEngine:
    """An engine of this machine, as impatient as it can be; those of devices on stand-ins for their libraries.

    MemFabric before 1.2 finds its store's URL in the file ``store`` of ``directory``.
    """
    machine = Machine(directory)
    store = directory / "store"
    terms = Terms(host=IP, protocol="sdma", store=store.read_text() if store.exists() else None, device=0)
    engines: dict[str, Callable[[], TransferEngine]] = {
        "shm": ShmEngine,
        "tcp": lambda: TcpEngine(bind_ip=IP, secret=b"a secret", timeout_s=TCP_TIMEOUT_S),
        "mooncake": lambda: MooncakeEngine(bind_ip=IP, secret=b"a secret"),
        "mooncake-ascend": lambda: MooncakeEngine(
            bind_ip=IP, protocol="ascend", secret=b"a secret", load=lambda *_: FakeMooncake(machine)
        ),
        "memfabric-1.0": lambda: MemfabricEngine(
            terms=terms, secret=b"a secret", load=memfabric(machine, (1, 0, 5)), timeout_s=5
        ),
        "memfabric-1.3": lambda: MemfabricEngine(
            terms=terms, secret=b"a secret", load=memfabric(machine, (1, 3, 0)), timeout_s=5
        ),
    }
    return engines[name]()


class ReceivingEnd:
    """Decode's end. A region's blocks are of ``BLOCK`` bytes; what is not as it was filled has changed."""

    def __init__(self, region: Region, receiver: Receiver) -> None:
        self._receiver = receiver
        self._memory = np.frombuffer(region.memory, np.uint8)
        self._heard: list[tuple[str, str, int]] = []
        self._canary = 0

    def connect(self, endpoint: dict[str, object], token: str) -> None:
        self._receiver.connect(endpoint, bytes.fromhex(token))

    def disconnect(self, token: str) -> None:
        self._receiver.disconnect(bytes.fromhex(token))

    def allow(self, token: str, seq: int) -> None:
        self._receiver.allow(bytes.fromhex(token), seq)

    def revoke(self, token: str, seq: int) -> bool:
        return self._receiver.revoke(bytes.fromhex(token), seq)

    def heard(self) -> list[tuple[str, str, int]]:
        """Everything heard so far: what, token, seq (0: none)."""
        for news in self._receiver.drain():
            self._heard.append((type(news).__name__, news.token.hex(), getattr(news, "seq", 0)))
        return self._heard

    def fill(self, value: int) -> None:
        self._canary = value
        self._memory[:] = value

    def changed(self) -> list[int]:
        """Blocks that hold anything but what they were filled with."""
        rows = self._memory.reshape(-1, BLOCK)
        return [int(block) for block in np.flatnonzero((rows != self._canary).any(axis=1))]

    def values(self, block: int) -> list[int]:
        """The distinct bytes of one block."""
        return sorted({int(value) for value in self._memory[block * BLOCK : (block + 1) * BLOCK]})

    def watch(self, data_bytes: int, last: int) -> int:
        """Look at the slot's first byte until it is ``last``: how often was data older than the slot?"""
        stale, until = 0, time.monotonic() + 60
        while time.monotonic() < until:
            flag = int(self._memory[SLOT])
            if flag and int(self._memory[:data_bytes].min()) < flag:
                stale += 1
            if flag == last:
                return stale
        raise TimeoutError("the last slot did not come")


class SendingEnd:
    """Prefill's end. Block i of its source holds i + 1 (mod 190)."""

    def __init__(self, source: memoryview, sender: Sender) -> None:
        self._sender = sender
        self._source = np.frombuffer(source, np.uint8)
        self._source.reshape(-1, BLOCK)[:] = (np.arange(NBYTES // BLOCK) % 190 + 1).astype(np.uint8)[:, None]
        self._heard: list[tuple[str, str]] = []
        self._result: dict[str, object] | None = None
        self._thread: threading.Thread | None = None
        self._go_on = True

    def endpoint(self) -> dict[str, object]:
        return self._sender.endpoint()

    def heard(self) -> list[tuple[str, str]]:
        """Everything heard so far: what, token. Links that ended stay until ``release``."""
        for news in self._sender.drain():
            self._heard.append((type(news).__name__, news.token.hex()))
        return self._heard

    def release(self, token: str) -> None:
        self._sender.release(bytes.fromhex(token))

    def write(self, token: str, rows: list[tuple[int, int, int]], seq: int) -> dict[str, object]:
        """Copies (from, to, bytes)."""
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        ops = WriteOps(*(np.ascontiguousarray(column) for column in columns))
        return result_of(lambda: self._sender.write(bytes.fromhex(token), ops, seq))

    def write_bytes(self, token: str, offset: int, data: str, seq: int) -> dict[str, object]:
        return result_of(
            lambda: self._sender.write_bytes(bytes.fromhex(token), offset, bytes.fromhex(data), seq)
        )

    def ring(self, token: str, seq: int) -> bool:
        return self._sender.ring(bytes.fromhex(token), seq)

    def start(self, token: str, rows: list[tuple[int, int, int]], seq: int) -> None:
        """``write`` again and again in a thread, until one fails or ``ended`` is called."""
        self._result, self._go_on = None, True

        def work() -> None:
            result = self.write(token, rows, seq)
            while self._go_on and "error" not in result:
                result = self.write(token, rows, seq)
            self._result = result

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def ended(self) -> dict[str, object]:
        """Let the write under way be the last one of ``start``; its result."""
        self._go_on = False
        return self.failed()

    def failed(self) -> dict[str, object]:
        """Wait until a write of ``start`` fails; its result."""
        assert self._thread is not None
        self._thread.join(60)
        assert self._result is not None
        return self._result

    def pump(self, token: str, data_bytes: int, last: int, seq: int) -> None:
        """For each value up to ``last``: data of it, then a slot of it."""
        rows = [(0, 0, data_bytes)]
        for value in range(1, last + 1):
            self._source[:data_bytes] = value
            assert "error" not in self.write(token, rows, seq)
            assert "error" not in self.write_bytes(token, SLOT, bytes([value]).hex(), seq)


def result_of(write: Callable[[], None]) -> dict[str, object]:
    """How a write ended, and in how many seconds."""
    began = time.monotonic()
    try:
        write()
    except PeerError as error:
        return {
            "error": type(error).__name__,
            "in_doubt": error.in_doubt,
            "message": str(error),
            "s": time.monotonic() - began,
        }
    return {"s": time.monotonic() - began}


def main() -> None:
    """See the module."""
    side, runtime_dir = sys.argv[1], Path(sys.argv[3])
    engine = engine_named(sys.argv[2], runtime_dir)
    with ExitStack() as stack:
        if side == "receiver":
            region = stack.enter_context(Region(NBYTES, engine.caps.alignment))
            end: object = ReceivingEnd(region, stack.enter_context(engine.receiver(region)))
        else:
            source = memoryview(mmap.mmap(-1, NBYTES))
            end = SendingEnd(source, stack.enter_context(engine.sender(source, runtime_dir)))
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(getattr(end, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
