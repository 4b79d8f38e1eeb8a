"""What every attempt of a router stands on."""

from __future__ import annotations

from msgspec import Struct

from pdcore.clock import Clock
from pdcore.router.metrics import RouterMetrics
from pdcore.router.upstream import Upstream
from pdcore.router.vigil import Vigil
from pdcore.router.witness import Witness


class Ground(Struct, frozen=True, kw_only=True):
    """Lives as long as the router."""

    upstream: Upstream
    clock: Clock
    metrics: RouterMetrics
    vigil: Vigil
    witness: Witness
