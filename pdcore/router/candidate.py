"""Which generation a request may prove: the one whose restart it knows the secret of. Pure.

A group's controller writes that secret into the group's desired record and sends it with the one request that has to be
answered before the candidate takes the traffic. Only who reads the store knows it, so nobody else reaches a candidate.
"""

from __future__ import annotations

import hmac

from pdcore.errors import ApiError
from pdcore.topology.topology import Topology

RESTART = "restart"
PROOF = "proof"


def candidate_of(topology: Topology, proof: str) -> tuple[str, int]:
    """The group and the generation that ``proof`` belongs to; 403 for one that belongs to none."""
    given = proof.encode()
    for name, group in topology.groups.items():
        desired = group.desired
        if desired is None or desired.candidate is None:
            continue
        restart = desired.extra.get(RESTART)
        secret = restart.get(PROOF) if isinstance(restart, dict) else None
        if isinstance(secret, str) and secret and hmac.compare_digest(secret.encode(), given):
            return name, desired.candidate
    raise ApiError("forbidden", "x-pdcore-candidate names no generation that is to be proven")
