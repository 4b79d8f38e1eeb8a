"""How a router is put together from an open store, a follower and a transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.config import RouterConfig
from pdcore.registry.follower import Follower
from pdcore.registry.store import LeaseId, Store
from pdcore.router.dispatch import Ground
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.load import Ledger
from pdcore.router.metrics import RouterMetrics
from pdcore.router.pick import CompatMemo, Pick, Rules
from pdcore.router.protocols.base import Handshake
from pdcore.router.protocols.bootstrap import Bootstrap
from pdcore.router.protocols.unified import Unified
from pdcore.router.rooms import ClientRooms
from pdcore.router.serving import Serving
from pdcore.router.upstream import Upstream
from pdcore.router.views import servable
from pdcore.topology.compat import check_pair
from pdcore.topology.events import Event, RankJoined, RankLost
from pdcore.topology.instance import Instance
from pdcore.topology.keys import Keyspace
from pdcore.topology.topology import Topology

_log = telemetry.logger(__name__)

HANDSHAKES: Final[Mapping[str, Handshake]] = {"bootstrap": Bootstrap(), "unified": Unified()}


def assemble(
    config: RouterConfig,
    *,
    store: Store,
    follower: Follower,
    upstream: Upstream,
    clock: Clock,
    lease: Callable[[], LeaseId | None],
) -> Serving:
    """What serves requests. Nothing is opened here; ``lease`` is the router's own, None while it has none."""
    metrics = RouterMetrics()
    metrics.watch("view_age_seconds", "Since the store last proved the view.", follower.view_age_s)
    metrics.watch("view_revision", "Revision of the view.", lambda: follower.topology.revision)
    rooms = ClientRooms(
        store, Keyspace(cluster=config.cluster), lease=lease, on_skipped=metrics.unclaimed_rooms.inc
    )
    return Serving(
        config=config,
        ground=Ground(upstream=upstream, clock=clock, metrics=metrics),
        follower=follower,
        ledger=Ledger(),
        rules=Rules(check=CompatMemo(_check), protocols=frozenset(HANDSHAKES)),
        handshakes=HANDSHAKES,
        client_rooms=rooms,
    )


def _check(prefill: Instance, decode: Instance) -> tuple[str, ...]:
    return check_pair(prefill.record, decode.record)


@contextmanager
def watching_the_fleet(serving: Serving, lifecycle: Lifecycle) -> Iterator[None]:
    """Inside the block: readiness latches when the view first holds something that serves; old turns are dropped."""

    def look(topology: Topology) -> None:
        if not lifecycle.latched and isinstance(servable(topology, serving.ledger, serving.rules), Pick):
            lifecycle.latched = True
        serving.ledger.forget(topology.instances)

    def on_events(events: tuple[Event, ...], topology: Topology) -> None:
        for event in events:
            facts = event.log_fields()
            # Of ranks the instance's own events say enough; a fleet has thousands of them.
            say = _log.debug if isinstance(event, RankJoined | RankLost) else _log.info
            say(str(facts.pop("event")).replace("_", " "), **facts)
        look(topology)

    unsubscribe = serving.follower.subscribe(on_events)
    look(serving.follower.topology)
    try:
        yield
    finally:
        unsubscribe()
