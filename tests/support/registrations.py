"""Records, specs and rank processes for tests of registration."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from pdcore.config import StoreAccess
from pdcore.registry import machine
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.store import Store
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace, RankPosition
from pdcore.topology.records import InstanceRecord, RankRecord, Record
from tests.support import fleet

FIRST: Final = RankPosition(0, 0, 0)
SECOND: Final = RankPosition(1, 0, 0)
_BEATING: Final = "import os,sys,time\nwhile True:\n  os.write({fd},b'.'); time.sleep(0.05)"
_ASLEEP: Final = "import time; time.sleep(600)"


def spec(
    store_url: str, incarnation: str, *, ttl_s: int = 5, timeout_s: float = 3.0, **fields: object
) -> RegistrarSpec:
    """A registrar's settings for instance ``d0`` of cluster ``test``, unless ``fields`` say otherwise."""
    known: dict[str, object] = {
        "store": StoreAccess(url=store_url, timeout_s=timeout_s),
        "cluster": "test",
        "instance_id": "d0",
        "incarnation": incarnation,
        "role": "decode",
        "ttl_s": ttl_s,
        "take_over": False,
        "log_format": "text",
        "log_level": "info",
    }
    return RegistrarSpec(**(known | fields))  # type: ignore[arg-type]


def instance_record(incarnation: str, *, ranks: int = 1, url: str = "http://127.0.0.1:1") -> InstanceRecord:
    """A serving decode instance of this process."""
    return fleet.instance_record(
        "decode",
        incarnation=incarnation,
        url=url,
        dp_size=ranks,
        machine=machine.machine(),
        boot_id=machine.boot_id(),
        pid=os.getpid(),
    )


def rank_record(incarnation: str, port: int = 7001) -> RankRecord:
    """A rank on this machine."""
    return fleet.rank_record(incarnation=incarnation, rank_port=port, machine=machine.machine())


def draining(record: InstanceRecord) -> InstanceRecord:
    """The same instance a moment later."""
    return record._replace(state="draining")


def rank_process(beat_pipe: int | None) -> subprocess.Popen[bytes]:
    """A process that beats 20 times a second on ``beat_pipe`` (closed here), or just sleeps without one."""
    code = _ASLEEP if beat_pipe is None else _BEATING.format(fd=beat_pipe)
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", code], pass_fds=() if beat_pipe is None else (beat_pipe,)
    )
    if beat_pipe is not None:
        os.close(beat_pipe)
    return process


async def records(store: Store, cluster: str = "test") -> dict[str, Record | codec.Rejected]:
    """Everything in a cluster's view, decoded, by its key relative to it."""
    prefix = Keyspace(cluster=cluster).view
    entries = (await store.list(prefix)).entries
    return {
        key.removeprefix(prefix): codec.decode(key.removeprefix(prefix), stored.value)
        for key, stored in entries.items()
    }
