"""What the router counts, in a registry of its own. Every label set is closed: no client text is ever a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdcore.errors import ErrorCode
from pdcore.registry.follower import Follower
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.overlay.suspect import Outcome
from pdcore.router.api import PATHS, Endpoint
from pdcore.router.exchange import FAILURES, Leg

OUTCOMES: Final = ("ok", "passed_through", *get_args(ErrorCode))
LEG_OUTCOMES: Final = ("ok", "cancelled", *FAILURES)
RETRIES: Final = ("retry_fresh", "retry_elsewhere", "retry_if_died")
LEGS: Final[tuple[Leg, ...]] = get_args(Leg)

_LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class LegOutcome:
    """How one leg ended; cancelled unless it is said."""

    def __init__(self) -> None:
        self.name = "cancelled"

    def set(self, name: str) -> None:
        self.name = name


class RouterMetrics:
    """All series, made at once so that every label set is visible from the start."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self.in_flight = Gauge("pdcore_router_in_flight", "Requests being served.", registry=registry)
        self._requests = Counter(
            "pdcore_router_requests",
            "Requests by how they ended.",
            ["endpoint", "outcome"],
            registry=registry,
        )
        self._duration = Histogram(
            "pdcore_router_request_seconds",
            "Whole requests.",
            ["endpoint"],
            buckets=_LATENCY,
            registry=registry,
        )
        self._first_event = Histogram(
            "pdcore_router_first_event_seconds",
            "Streams until their first event.",
            buckets=_LATENCY,
            registry=registry,
        )
        self._legs_open = Gauge("pdcore_router_legs_in_flight", "Open legs.", ["leg"], registry=registry)
        self._legs = Counter(
            "pdcore_router_legs", "Legs by how they ended.", ["leg", "outcome"], registry=registry
        )
        self._retries = Counter(
            "pdcore_router_retries", "Further attempts by reason.", ["reason"], registry=registry
        )
        self.late_prefill_failures = Counter(
            "pdcore_router_late_prefill_failures",
            "Prefill failures after the KV had arrived; the client saw none of them.",
            registry=registry,
        )
        self.broken_streams = Counter(
            "pdcore_router_broken_streams", "Streams that ended with an error event.", registry=registry
        )
        self.unclaimed_rooms = Counter(
            "pdcore_router_unclaimed_rooms",
            "Client rooms not claimed in the store because it was away.",
            registry=registry,
        )
        self._create_all()

    def _create_all(self) -> None:
        for endpoint in PATHS:
            self._duration.labels(endpoint)
            for outcome in OUTCOMES:
                self._requests.labels(endpoint, outcome)
        for leg in LEGS:
            self._legs_open.labels(leg)
            for outcome in LEG_OUTCOMES:
                self._legs.labels(leg, outcome)
        for reason in RETRIES:
            self._retries.labels(reason)

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when somebody looks."""
        Gauge(f"pdcore_router_{name}", help_text, registry=self.registry).set_function(value)

    def watch_view(self, follower: Follower, fleet: Fleet) -> None:
        """What the follower and its overlay know of themselves, read when somebody looks."""
        self.watch("view_age_seconds", "Since the store last proved the view.", follower.view_age_s)
        self.watch("view_revision", "Revision of the view.", lambda: follower.topology.revision)
        self.watch("view_reconnects", "Breaks of the watch.", lambda: follower.reconnects_total)
        self.watch("view_relists", "Times the store was listed again.", lambda: follower.relists_total)
        self.watch("view_repairs", "Times the view was wrong; must stay 0.", lambda: follower.repairs_total)
        self.watch("suspects", "Instances picked last.", lambda: fleet.statistics().suspects)
        self.watch("instances_gone", "Instances known not to answer.", lambda: fleet.statistics().gone)
        probes = Gauge(
            "pdcore_router_probes", "Probes by how they ended.", ["outcome"], registry=self.registry
        )
        for outcome in get_args(Outcome):
            probes.labels(outcome).set_function(partial(fleet.probes, outcome))

    @contextmanager
    def leg(self, leg: Leg) -> Iterator[LegOutcome]:
        """Count one leg as open inside the block and by its outcome afterwards."""
        outcome = LegOutcome()
        self._legs_open.labels(leg).inc()
        try:
            yield outcome
        finally:
            self._legs_open.labels(leg).dec()
            self._legs.labels(leg, outcome.name).inc()

    def ended(self, endpoint: Endpoint, outcome: str, seconds: float) -> None:
        """One request ended with an outcome of :data:`OUTCOMES`."""
        self._requests.labels(endpoint, outcome).inc()
        self._duration.labels(endpoint).observe(seconds)

    def first_event(self, seconds: float) -> None:
        """A stream's first event went out ``seconds`` after its request came in."""
        self._first_event.observe(seconds)

    def retried(self, reason: str) -> None:
        """A further attempt for a reason of :data:`RETRIES`."""
        self._retries.labels(reason).inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
