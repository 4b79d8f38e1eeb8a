"""Whether anybody listens at an address: one bounded TCP connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pdcore.registry.facade.bodies import Address
from pdcore.registry.facade.rank_table import Outcome
from pdcore.topology.keys import RankPosition

PROBE_S: Final = 1.0
PROBED_AT_ONCE: Final = 128


async def probe(address: Address) -> Outcome:
    """How ``address`` takes a connection."""
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(address.ip, address.port)
    except ConnectionRefusedError:
        return "refuses"
    except OSError:  # a TimeoutError too
        return "silent"
    writer.transport.abort()
    return "answers"


async def probe_all(addresses: Mapping[RankPosition, Address]) -> Mapping[RankPosition, Outcome]:
    """How each of them takes a connection."""
    places = asyncio.Semaphore(PROBED_AT_ONCE)

    async def one(address: Address) -> Outcome:
        async with places:
            return await probe(address)

    async with asyncio.TaskGroup() as group:
        probes = {position: group.create_task(one(address)) for position, address in addresses.items()}
    return {position: task.result() for position, task in probes.items()}
