"""What a router shows of itself and of the fleet: models, health, readiness, metrics, the topology."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdcore.registry.follower import Follower
from pdcore.registry.overlay.fleet import Fleet
from pdcore.registry.overlay.suspect import Suspect
from pdcore.registry.overlay.view import View
from pdcore.router.lifecycle import Lifecycle
from pdcore.router.load import Ledger
from pdcore.router.metrics import LEGS, OUTCOMES, RouterMetrics
from pdcore.router.models import named
from pdcore.router.pick import NoPair, Pick, Rules, Want, pick
from pdcore.topology.instance import Instance
from pdcore.topology.records import Role


def servable(view: View, ledger: Ledger, rules: Rules) -> Pick | NoPair:
    """Something that could serve some model of the fleet, or everything that is in the way."""
    reasons: dict[str, tuple[str, ...]] = {}
    topology = view.topology
    for model in topology.models():
        found = pick(topology, Want(model=model), ledger, rules, view)
        if isinstance(found, Pick):
            return found
        reasons |= found.reasons
    reasons = reasons or {"*": ("no instance is registered",)}
    return NoPair(reasons=reasons, revision=topology.revision)


class Views:
    """The read-only endpoints."""

    def __init__(
        self,
        *,
        router_id: str,
        follower: Follower,
        fleet: Fleet,
        ledger: Ledger,
        rules: Rules,
        lifecycle: Lifecycle,
        metrics: RouterMetrics,
    ) -> None:
        self._router_id = router_id
        self._follower = follower
        self._fleet = fleet
        self._ledger = ledger
        self._rules = rules
        self._lifecycle = lifecycle
        self._metrics = metrics

    async def models(self, _: Request) -> Response:
        """``/v1/models`` as OpenAI has it."""
        data = [
            {"id": model, "object": "model", "created": 0, "owned_by": "pdcore"}
            for model in named(self._fleet.topology.models())
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(self, _: Request) -> Response:
        """Alive; says nothing about whether anything can be served."""
        return JSONResponse({"status": "ok", "router_id": self._router_id})

    async def ready(self, _: Request) -> Response:
        """200 once a complete view has held an eligible pair, until the drain; else why not."""
        if self._lifecycle.ready:
            return JSONResponse({"ready": True, "revision": self._fleet.topology.revision})
        return JSONResponse({"ready": False, "reasons": self.why_not_ready()}, status_code=503)

    def why_not_ready(self) -> list[str]:
        """Every reason, as sentences."""
        if self._lifecycle.draining:
            return ["the router is draining"]
        error = self._follower.last_error
        why = [] if error is None else [f"not following the store: {error}"]
        if self._follower.synced or self._fleet.overlay.suspects:
            found = servable(self._fleet.view, self._ledger, self._rules)
            why += [found.sentence()] if isinstance(found, NoPair) else []
        return why

    async def metrics(self, _: Request) -> Response:
        """Prometheus text."""
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def stats(self, _: Request) -> Response:
        """A few numbers for people and scripts; ``/metrics`` has all of them."""
        topology, metrics = self._fleet.topology, self._metrics
        roles: tuple[Role, ...] = get_args(Role)
        ready = {f"{role}_backends": sum(one.ready for one in topology.by_role(role)) for role in roles}
        return JSONResponse(
            {
                "status": "draining" if self._lifecycle.draining else "running",
                **ready,
                "in_flight": metrics.in_flight.value(),
                "answering": metrics.answering.value(),
                "legs_in_flight": {leg: metrics.legs_open(leg) for leg in LEGS},
                "requests": {name: count for name in OUTCOMES if (count := metrics.requests(name))},
                "revision": topology.revision,
            }
        )

    async def topology(self, _: Request) -> Response:
        """The view this router picks from."""
        topology, age = self._fleet.topology, self._follower.view_age_s()
        return JSONResponse(
            {
                "revision": topology.revision,
                "store_id": topology.store_id,
                "synced": self._follower.synced,
                "view_age_seconds": round(age, 3) if math.isfinite(age) else None,
                "last_error": self._follower.last_error,
                "instances": {
                    instance_id: self._shown(instance)
                    for instance_id, instance in sorted(topology.instances.items())
                },
                "suspects": {
                    instance_id: _suspicion(one)
                    for instance_id, one in sorted(self._fleet.overlay.suspects.items())
                },
                "groups": {
                    name: {"active": topology.active_generation(name)} for name in sorted(topology.groups)
                },
                "excluded": self._excluded(),
                "routers": {router_id: one.url for router_id, one in sorted(topology.routers.items())},
                "rejected": {key: one.reason for key, one in sorted(topology.rejected.items())},
            }
        )

    def _excluded(self) -> Mapping[str, Mapping[str, list[str]]]:
        """Of each model, who may not take its requests and why; whoever is in no pair is named with both values."""
        view = self._fleet.view
        topology = view.topology
        answers = {
            model: self._rules.eligible(topology, Want(model=model), view) for model in topology.models()
        }
        return {
            model: {name: list(why) for name, why in answer.all_fit.reasons.items() if name != "*"}
            for model, answer in answers.items()
        }

    def _shown(self, instance: Instance) -> Mapping[str, object]:
        record = instance.record
        return {
            "role": record.role,
            "incarnation": record.incarnation,
            "state": record.state,
            "ready": instance.ready,
            "draining": instance.draining,
            "why_not_ready": list(instance.why_not_ready),
            "group": record.group,
            "generation": record.generation,
            "seat": record.seat,
            "models": list(record.models),
            "url": record.url,
            "bootstrap": f"{record.bootstrap_host}:{record.bootstrap_port}"
            if record.bootstrap_host
            else None,
            "ranks": [str(position) for position in instance.ranks],
            "in_flight": self._ledger.in_flight(instance.instance_id),
        }


def _suspicion(one: Suspect) -> Mapping[str, object]:
    return {
        "incarnation": one.instance.incarnation,
        "standing": one.standing,
        "cause": one.cause,
        "reason": one.why,
        "listed": one.listed,
    }
