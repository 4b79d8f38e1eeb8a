"""The store that memfabric before 1.2 needs: kept by one process, found by leaders in the keyspace."""

from __future__ import annotations

import asyncio
import importlib
from typing import Final

from pdcore import telemetry
from pdcore.clock import SystemClock
from pdcore.config.memfabric_store import MemfabricStoreConfig
from pdcore.engine.process import beside, signals
from pdcore.engine.transfer.memfabric_library import PACKAGE
from pdcore.errors import ConfigError, StoreError
from pdcore.registry.connect import admitted_store
from pdcore.registry.standing_word import StandingWord
from pdcore.registry.store import Store
from pdcore.topology.keys import Keyspace

LEAVE_S: Final = 3.0
LOOK_S: Final = 3.0

log = telemetry.logger(__name__)


async def run(config: MemfabricStoreConfig) -> None:
    """Keep the store and its address until a signal. ConfigError for what cannot work."""
    keyspace = Keyspace(cluster=config.cluster)
    url = f"tcp://{config.host}:{config.port}"
    async with admitted_store(config.store_access, keyspace) as store:
        _create(url)
        told = asyncio.Event()
        word = StandingWord(
            store, keyspace.memfabric_store, url.encode(), ttl_s=config.lease_ttl_s, clock=SystemClock()
        )
        async with signals(lambda number, times: told.set()), beside(word.keep()):
            log.info("memfabric store serving", url=url)
            await told.wait()
        async with asyncio.timeout(LEAVE_S):
            await word.withdraw()


async def find(store: Store, keyspace: Keyspace) -> str | None:
    """Where the cluster's memfabric store is; None while there is none, or nobody can say."""
    try:
        async with asyncio.timeout(LOOK_S):
            stored = await store.get(keyspace.memfabric_store)
    except (StoreError, TimeoutError) as away:
        log.warning("the store does not say where memfabric's is", reason=str(away))
        return None
    return None if stored is None else stored.value.decode("ascii", errors="replace")


def _create(url: str) -> None:
    try:
        library = importlib.import_module(PACKAGE)
    except (ImportError, OSError) as missing:
        raise ConfigError(
            f"memfabric_hybrid cannot be imported: {missing}; pip install 'pdcore[ascend]'"
        ) from missing
    status = library.create_config_store(url)
    if status != 0:
        raise ConfigError(
            f"--host and --port: memfabric cannot keep its store at {url}: it answered {status}"
        )
