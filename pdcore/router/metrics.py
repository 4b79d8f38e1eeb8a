"""What the router counts, in a registry of its own. Every label set is closed: no client text is ever a label."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pdcore.errors import ErrorCode
from pdcore.registry.follower import Follower
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.overlay.suspect import Outcome
from pdcore.router.api import PATHS, Endpoint
from pdcore.router.exchange import FAILURES, Leg
from pdcore.router.exposition import counter, gauge, histogram
from pdcore.router.pace import Pace

OUTCOMES: Final = ("ok", "passed_through", *get_args(ErrorCode))
LEG_OUTCOMES: Final = ("ok", "cancelled", *FAILURES)
RETRIES: Final = ("retry_fresh", "retry_elsewhere", "retry_if_died")
LEGS: Final[tuple[Leg, ...]] = get_args(Leg)
REFUSALS: Final[tuple[ErrorCode, ...]] = ("unauthorized", "forbidden")

_LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BETWEEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)


class RouterMetrics:
    """All series, made at once so that every label set is visible from the start."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self.in_flight = gauge(registry, _named("in_flight"), "Requests being served.")
        self.answering = gauge(
            registry, _named("answering"), "Requests whose answer has begun; the others wait."
        )
        endpoints, legs = tuple(PATHS), {"leg": LEGS}
        self._requests = counter(
            registry,
            _named("requests"),
            "Requests by how they ended.",
            {"endpoint": endpoints, "outcome": OUTCOMES},
        )
        self._duration = histogram(
            registry, _named("request_seconds"), "Whole requests.", _LATENCY_S, {"endpoint": endpoints}
        )
        self._first_event = histogram(
            registry,
            _named("ttft_seconds"),
            "From a request to its stream's first event.",
            _LATENCY_S,
        )
        self._between = histogram(
            registry, _named("tpot_seconds"), "Mean time between a stream's events.", _BETWEEN_S
        )
        self._legs_open = gauge(registry, _named("legs_in_flight"), "Open legs.", legs)
        self._legs = counter(
            registry, _named("legs"), "Legs by how they ended.", {**legs, "outcome": LEG_OUTCOMES}
        )
        self._retries = counter(
            registry, _named("retries"), "Further attempts by reason.", {"reason": RETRIES}
        )
        self._refused = counter(
            registry, _named("refused"), "Requests of whom the router does not serve.", {"code": REFUSALS}
        )
        self.late_prefill_failures = counter(
            registry,
            _named("late_prefill_failures"),
            "Prefill failures after the KV had arrived; the client saw none of them.",
        )
        self.broken_streams = counter(
            registry, _named("broken_streams"), "Streams that ended with an error event."
        )
        self.unclaimed_rooms = counter(
            registry,
            _named("unclaimed_rooms"),
            "Client rooms not claimed in the store because it was away.",
        )

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

    def leg_began(self, leg: Leg) -> None:
        """One more is open."""
        self._legs_open.inc(leg)

    def leg_ended(self, leg: Leg, outcome: str) -> None:
        """It is not any more, and has had an outcome of :data:`LEG_OUTCOMES`."""
        self._legs_open.dec(leg)
        self._legs.inc(leg, outcome)

    def ended(self, endpoint: Endpoint, outcome: str, seconds: float) -> None:
        """One request ended with an outcome of :data:`OUTCOMES`."""
        self._requests.inc(endpoint, outcome)
        self._duration.observe(seconds, endpoint)

    def streamed(self, started: float, pace: Pace) -> None:
        """One stream, whole or not, that began to be waited for at ``started``."""
        first_s, between_s = pace.first_after_s(started), pace.between_s()
        if first_s is not None:
            self._first_event.observe(first_s)
        if between_s is not None:
            self._between.observe(between_s)

    def retried(self, reason: str) -> None:
        """A further attempt for a reason of :data:`RETRIES`."""
        self._retries.inc(reason)

    def refused(self, code: ErrorCode) -> None:
        """Somebody without the key he needs; ``code`` is one of :data:`REFUSALS`."""
        self._refused.inc(code)

    def requests(self, outcome: str) -> int:
        """How many ended so, at any endpoint."""
        return sum(self._requests.value(endpoint, outcome) for endpoint in PATHS)

    def legs_open(self, leg: Leg) -> int:
        """Open legs now."""
        return self._legs_open.value(leg)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


def _named(name: str) -> str:
    return f"pdcore_router_{name}"
