"""How a router is put together from an open store, a follower and a transport."""

from __future__ import annotations

import gc
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from pdcore import telemetry
from pdcore.clock import Clock
from pdcore.config import RouterConfig
from pdcore.registry.follower import Follower
from pdcore.registry.journal.writer import JournalWriter
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.overlay.suspect import Note
from pdcore.registry.store import LeaseId, Store
from pdcore.router.access import OPEN, Access
from pdcore.router.contacts import Contacts
from pdcore.router.fixed.fleet import fixed_fleet
from pdcore.router.ground import Ground
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.load import Ledger
from pdcore.router.metrics import RouterMetrics
from pdcore.router.pick import CompatMemo, Pick, Rules
from pdcore.router.policies.prompt_memory import PromptMemory
from pdcore.router.policies.selection import Selection
from pdcore.router.protocols.ascend_layerwise import AscendLayerwise
from pdcore.router.protocols.bootstrap import Bootstrap
from pdcore.router.protocols.handshake import Handshake
from pdcore.router.protocols.mooncake import Mooncake
from pdcore.router.protocols.nixl import Nixl
from pdcore.router.protocols.unified import Unified
from pdcore.router.rooms import ClientRooms
from pdcore.router.serving import Serving
from pdcore.router.upstream import Upstream
from pdcore.router.views import servable
from pdcore.router.vigil import Vigil
from pdcore.router.witness import Witness
from pdcore.topology.compat import check_pair
from pdcore.topology.events import Event, InstanceChanged, RankJoined, RankLost, RecordRejected
from pdcore.topology.instance import Instance
from pdcore.topology.keys import Keyspace
from pdcore.topology.shards import ShardedMap
from pdcore.topology.topology import Topology

_log = telemetry.logger(__name__)

QUIET_S: Final = 1.0
LOOK_EVERY_S: Final = 0.25
COLLECT_AFTER: Final = (20_000, 20, 100)
HANDSHAKES: Final[Mapping[str, Handshake]] = {
    "bootstrap": Bootstrap(),
    "nixl": Nixl(),
    "mooncake": Mooncake(),
    "ascend-layerwise": AscendLayerwise(),
    "unified": Unified(),
}


def assemble(
    config: RouterConfig,
    *,
    store: Store,
    follower: Follower,
    upstream: Upstream,
    contacts: Contacts,
    clock: Clock,
    lease: Callable[[], LeaseId | None],
    cached: Topology | None = None,
    access: Access = OPEN,
    engine_tls: ssl.SSLContext | None = None,
) -> Serving:
    """What serves requests. Nothing is opened here; ``lease`` is the router's own, None while it has none.

    ``cached`` is the view of an earlier run, to begin with while the store is away. ``engine_tls`` is by what engines at
    https addresses are known, the machine's trust if None.
    """
    fleet = Fleet(
        follower,
        probe_timeout_s=config.probe_timeout_s,
        frozen_after_s=config.frozen_after_s,
        cached=cached,
        tls=engine_tls,
        clock=clock,
    )
    metrics, ledger = RouterMetrics(), Ledger()
    metrics.watch_view(follower, fleet)
    witness = Witness(fleet=fleet, ledger=ledger, clock=clock)
    _watch(metrics, witness)
    metrics.watch("callbacks", "Calls of engines that are waited for.", lambda: len(contacts.callbacks))
    policies = Selection(config.policy, config.prefill_policy, config.decode_policy)
    rooms = ClientRooms(
        store, Keyspace(cluster=config.cluster), lease=lease, on_skipped=metrics.unclaimed_rooms.inc
    )
    return Serving(
        config=config,
        ground=Ground(upstream=upstream, clock=clock, metrics=metrics, vigil=Vigil(), witness=witness),
        follower=follower,
        fleet=fleet,
        ledger=ledger,
        rules=Rules(check=CompatMemo(_check), protocols=frozenset(HANDSHAKES), policies=policies),
        prompts=PromptMemory(policies),
        handshakes=HANDSHAKES,
        contacts=contacts,
        client_rooms=rooms,
        access=access,
        fixed=fixed_fleet(config, store, fleet, clock, access.towards_engines, engine_tls),
    )


def _watch(metrics: RouterMetrics, witness: Witness) -> None:
    """Show what the witness holds back."""
    breakers, poison = witness.breakers, witness.poison
    metrics.watch("breakers_open", "Instances picked last for what they fail.", lambda: breakers.open_now)
    metrics.watch("retries_denied", "Retries that the budget did not allow.", lambda: witness.retries.denied)
    metrics.watch("requests_poisoned", "Requests refused for the deaths they left.", lambda: poison.refused)


def _check(prefill: Instance, decode: Instance) -> tuple[str, ...]:
    return check_pair(prefill.record, decode.record)


def _level(event: Event) -> int:
    """A detail where other events say enough of it: of a rank its instance's readiness, of a state that and draining."""
    match event:
        case RecordRejected():
            return logging.WARNING
        case RankJoined() | RankLost() | InstanceChanged(fields=("state",)):
            return logging.DEBUG
        case _:
            return logging.INFO


def _settle_memory() -> None:
    """What stands after the first list stays: no full collection needs to walk a thousand instances again.

    And what comes and goes with requests is freed by counting, so that it need not be walked often either.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def watch_the_journal(serving: Serving, journal: JournalWriter) -> None:
    """Show how the writing of the journal goes."""

    def lag() -> float:
        return max(0, serving.follower.topology.revision - journal.statistics().revision)

    metrics = serving.ground.metrics
    metrics.watch("journal_lag_revisions", "Revisions of the view that are not in the journal.", lag)
    metrics.watch(
        "journal_error",
        "1 while the journal cannot be written; the log says why.",
        lambda: float(journal.statistics().error is not None),
    )


@contextmanager
def watching_the_fleet(serving: Serving, lifecycle: Lifecycle) -> Iterator[None]:
    """Inside the block: readiness latches when the view first holds something that serves; old turns are dropped."""

    settled, witness = False, serving.ground.witness
    known = ShardedMap[Instance]()
    log = _log.bind()  # once: found anew for each event it costs more than the event's place in a list

    def look() -> None:
        nonlocal settled, known
        if not settled and serving.follower.synced:
            settled = True
            _settle_memory()
        view = serving.fleet.view
        if not lifecycle.latched and isinstance(servable(view, serving.ledger, serving.rules), Pick):
            lifecycle.latched = True
        before, known = known, view.topology.instances
        if any(name not in known for name in known.changed(before)):
            serving.ledger.forget(known)
            serving.contacts.learned.forget(known)
            witness.forget()
        witness.on_change()

    def on_note(note: Note) -> None:
        witness.on_note(note)
        if note.kind == "frozen":
            serving.ground.vigil.fail(note.key)

    def on_events(events: tuple[Event, ...], topology: Topology) -> None:
        for event in events:
            level = _level(event)
            if log.is_enabled_for(level):
                facts = event.log_fields()
                log.log(level, str(facts.pop("event")).replace("_", " "), **facts)

    with ExitStack() as stack:
        stack.callback(serving.follower.subscribe(on_events))
        stack.callback(serving.fleet.subscribe(look, on_note))
        look()
        yield


async def watch_for_silence(serving: Serving) -> None:
    """For ever: ask every instance that has requests and sends nothing whether it lives."""
    clock = serving.ground.clock
    while True:
        await clock.sleep(LOOK_EVERY_S)
        for key in serving.ground.vigil.quiet(clock.now(), QUIET_S):
            serving.fleet.accuse(key, "silence")
