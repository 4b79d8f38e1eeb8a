"""Using a store the way a registrar and a follower do, for a moment: writes, events, the id, how far history goes."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from dataclasses import dataclass
from typing import Final

from pdcore.errors import AccessRefused, Compacted, StoreError
from pdcore.registry.store import Put, Revision, Snapshot, Store
from pdcore.topology.keys import Keyspace

LEASE_S: Final = 10
PUTS: Final = 5
EVENT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was measured; ``view`` is the cluster's keys. ``problem``: why the trial ended early; ``refused``: for lack
    of a permission.

    ``put_s`` is the median of a few puts, ``event_s`` from a put to its event. ``history_whole``: nothing has ever
    been compacted; None when that could not be told.
    """

    view: Snapshot | None = None
    put_s: float | None = None
    event_s: float | None = None
    history_whole: bool | None = None
    problem: str | None = None
    refused: bool = False


async def try_store(store: Store, keyspace: Keyspace) -> Trial:
    """Leaves nothing behind: what it writes lies in ``side/``, under a lease that it ends."""
    view: Snapshot | None = None
    put_s = event_s = whole = problem = None
    refused = False
    try:
        view = await store.list(keyspace.view)
        lease = await store.grant(LEASE_S)
        try:
            prefix = f"{keyspace.side}doctor/{secrets.token_hex(8)}/"
            puts = [Put(f"{prefix}{number}", b"{}", lease) for number in range(PUTS)]
            put_s = statistics.median([await _timed_put(store, put) for put in puts])
            event_s = await _timed_event(store, Put(f"{prefix}event", b"{}", lease), prefix)
            whole = await _is_history_whole(store, prefix)
        finally:
            await store.revoke(lease)
    except (StoreError, TimeoutError) as error:
        problem = str(error) or f"no event within {EVENT_S:g} s"
        refused = isinstance(error, AccessRefused)
    return Trial(
        view=view, put_s=put_s, event_s=event_s, history_whole=whole, problem=problem, refused=refused
    )


async def _timed_put(store: Store, put: Put) -> float:
    began = time.perf_counter()
    await store.commit((), (put,))
    return time.perf_counter() - began


async def _timed_event(store: Store, put: Put, prefix: str) -> float:
    after = (await store.list(prefix)).revision
    async with asyncio.timeout(EVENT_S), store.watch(prefix, after) as messages:
        await anext(messages)  # connected
        began = time.perf_counter()
        await store.commit((), (put,))
        async for message in messages:
            if isinstance(message, Revision):
                return time.perf_counter() - began
    raise TimeoutError


async def _is_history_whole(store: Store, prefix: str) -> bool | None:
    """Whether a watch from the very beginning still finds what was written below ``prefix``."""
    try:
        async with asyncio.timeout(EVENT_S), store.watch(prefix, 0) as messages:
            async for message in messages:
                if isinstance(message, Revision):
                    return True
    except Compacted:
        return False
    except TimeoutError:
        return None
    return None
