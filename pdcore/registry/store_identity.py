"""The key that tells one store from another, created by whoever comes first."""

from __future__ import annotations

import json
import secrets

from pdcore.registry.store import Absent, Put, Store
from pdcore.topology.keys import STORE_ID


async def ensure_store_id(store: Store, view: str) -> None:
    """Give the keyspace's ``view`` an id unless it has one. etcd refuses it to an account that may not write there,
    also when nothing has to be written."""
    key = view + STORE_ID
    fresh = json.dumps(secrets.token_hex(16)).encode()
    await store.commit((Absent(key),), (Put(key, fresh),))
