"""What the routers of a view say about instances that the keyspace and the network disagree about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdcore.cli.pass_key import NO_KEY, PassKey
from pdcore.cli.routers import Said, Unreachable, ask_routers
from pdcore.topology.topology import Topology

TIMEOUT_S: Final = 1.0

Suspects = Mapping[str, Mapping[str, Any]]
"""Router id → instance id → what that router knows of it."""


async def read_suspects(view: Topology, key: PassKey = NO_KEY) -> Suspects:
    """The suspects of every router that answers soon; routers without any are left out."""
    answers = await ask_routers(view, "/pdcore/topology", {}, timeout_s=TIMEOUT_S, key=key)
    found = {router_id: suspects_in(answer) for router_id, answer in answers.items()}
    return {router_id: suspects for router_id, suspects in found.items() if suspects}


def suspects_in(answer: Said | Unreachable) -> dict[str, Any]:
    """The suspects in one router's answer; none in an answer of another kind."""
    document = answer.document if isinstance(answer, Said) else None
    suspects = (document or {}).get("suspects")
    return suspects if isinstance(suspects, dict) else {}


def lines(suspects: Suspects) -> Iterator[str]:
    """One sentence per router and suspect."""
    for router_id, found in suspects.items():
        for instance_id, said in sorted(found.items()):
            about = said if isinstance(said, dict) else {}
            standing, reason = about.get("standing"), about.get("reason")
            yield f"{instance_id} is suspect to {router_id}: {standing}, {reason}"
