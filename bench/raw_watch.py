"""The peer of a router's follower: a process with nothing but a gRPC watch of one prefix.

Prints ``watching`` once the watch stands; when standard input ends, one JSON object: revision → seconds since 1970 at
which its answer was read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

import grpc
import uvloop

from pdcore.registry.etcd import wire_pb2 as wire
from pdcore.registry.etcd.revisions import key_range


async def watch(address: str, prefix: str) -> dict[int, float]:
    """Every revision under ``prefix`` and when it came, until standard input ends."""
    seen: dict[int, float] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=wire.WatchRequest.SerializeToString,
            response_deserializer=wire.WatchResponse.FromString,
        )()
        key, end = key_range(prefix)
        await call.write(wire.WatchRequest(create=wire.WatchCreateRequest(key=key, range_end=end)))
        await call.read()
        print("watching", flush=True)

        async def read() -> None:
            while (answer := await call.read()) is not grpc.aio.EOF:
                now = time.time()
                for event in answer.events:
                    seen.setdefault(event.kv.mod_revision, now)

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            await asyncio.to_thread(sys.stdin.read)
            reading.cancel()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("prefix")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(watch(arguments.address, arguments.prefix))), flush=True)


if __name__ == "__main__":
    main()
