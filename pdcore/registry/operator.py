"""An operator's hand on the keyspace: gives orders in checked transactions."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pdcore.errors import StoreUnavailable
from pdcore.registry import machine
from pdcore.registry.ordering import END_TTL_S, Decision, Give, Standing, TakeBack
from pdcore.registry.store import Delete, LeaseId, Put, Store
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace

TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What came of it. ``revision``: as of which it holds; an order given or taken back made that revision."""

    decision: Decision
    revision: int


def operator() -> str:
    """Who gives an order: the person and the machine, for the record."""
    return f"{getpass.getuser()}@{machine.machine()}"


async def give_order(
    store: Store, keyspace: Keyspace, instance_id: str, decide: Callable[[Standing], Decision]
) -> Ordered:
    """Decide on what stands and write that, unless it changed meanwhile; then decide again.

    Raises StoreError.
    """
    for _ in range(TRIES):
        standing, revision = await _read(store, keyspace, instance_id)
        decision = decide(standing)
        key = keyspace.view + keys.order(instance_id)
        if isinstance(decision, Give):
            lease = await store.grant(END_TTL_S) if decision.order.kind == "end" else None
            write = Put(key, codec.encode(decision.order), lease)
            bound = decision.order.incarnation is not None
            committed = await store.commit(standing.unchanged(instance=bound), (write,))
            if not committed.succeeded:
                await _drop(store, lease)
        elif isinstance(decision, TakeBack):
            committed = await store.commit(standing.unchanged(instance=False), (Delete(key),))
        else:
            return Ordered(decision=decision, revision=revision)
        if committed.succeeded:
            return Ordered(decision=decision, revision=committed.revision)
    raise StoreUnavailable(f"{instance_id} changed {TRIES} times while its order was being written")


async def _read(store: Store, keyspace: Keyspace, instance_id: str) -> tuple[Standing, int]:
    instances = await store.list(f"{keyspace.view}instances/")
    claim = await store.get(keyspace.claim(instance_id))
    order = await store.get(keyspace.view + keys.order(instance_id))
    standing = Standing(
        keyspace=keyspace,
        instance_id=instance_id,
        instance=instances.entries.get(keyspace.view + keys.instance(instance_id)),
        order=order,
        claimed=claim is not None,
        others=tuple(key.removeprefix(f"{keyspace.view}instances/") for key in instances.entries),
    )
    return standing, instances.revision


async def _drop(store: Store, lease: LeaseId | None) -> None:
    if lease is not None:
        await store.revoke(lease)
