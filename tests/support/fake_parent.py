"""A leader without an engine: registers like one, with rank processes that only beat. Run as a program by tests.

``python -m tests.support.fake_parent SPEC RANKS URL``, SPEC as JSON. Waits for a line on its standard input, so that
a test can have it loaded beforehand. Says ``claimed``, then ``registered`` with the seconds since put, its ranks'
pids and its registrar's; ends like an engine: 2 refused, 3 superseded. A later line ``loop SECONDS`` or
``native SECONDS`` blocks its event loop that long, in Python or in a native call that holds the interpreter; then it
says ``blocked``.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import time

import msgspec

from pdcore import telemetry
from pdcore.errors import ConfigError, Superseded
from pdcore.registry import machine
from pdcore.registry.registrar_messages import RegistrarSpec
from pdcore.registry.registration import Registration
from pdcore.topology.keys import RankPosition
from tests.support.registrations import instance_record, rank_process, rank_record


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def obey() -> None:
    """Do what a line of standard input asks for; its end asks for nothing more."""
    how, _, seconds = os.read(sys.stdin.fileno(), 100).decode().partition(" ")
    match how:
        case "loop":
            end = time.monotonic() + float(seconds)
            while time.monotonic() < end:
                pass
        case "native":
            ctypes.PyDLL(None).usleep(round(float(seconds) * 1e6))
        case _:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
    say("blocked", how=how)


async def parent(spec: RegistrarSpec, ranks: int, url: str) -> int:
    async with Registration(spec) as registration:
        await registration.claim()
        say("claimed")
        positions = [RankPosition(dp, 0, 0) for dp in range(ranks)]
        pids = []
        for position in positions:
            process = rank_process(registration.beat_pipe(position))
            pids.append(process.pid)
            pidfd = machine.open_pidfd(process.pid)
            registration.watch_process(position, pidfd)
            os.close(pidfd)
        started = time.monotonic()
        registration.put(
            instance_record(spec.incarnation, ranks=ranks, url=url),
            {position: rank_record(spec.incarnation) for position in positions},
        )
        await registration.wait_registered(30)
        took_s = time.monotonic() - started
        say("registered", took_s=took_s, ranks=pids, registrar=registration.registrar_pid)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), obey)
        superseded = await registration.wait_superseded()
        say("superseded", holder=superseded.holder)
        return 3


def main() -> int:
    spec = msgspec.json.decode(sys.argv[1], type=RegistrarSpec)
    telemetry.configure(spec.log_format, spec.log_level, role=spec.role, instance_id=spec.instance_id)
    sys.stdin.readline()
    try:
        return asyncio.run(parent(spec, int(sys.argv[2]), sys.argv[3]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except Superseded:
        return 3


if __name__ == "__main__":
    sys.exit(main())
