"""What an order means for one incarnation. Pure.

An order binds the incarnation it names; a sticky order to drain or undrain binds every start of the instance. An
order to end always names one incarnation, and whoever is another one ignores it.
"""

from __future__ import annotations

from typing import Final, Literal

from pdcore.topology.records import OrderRecord

Meaning = Literal["serve", "drain", "end"]
DRAINED: Final = "drained"
"""Field of an instance's record that drains by order: true once nothing it took before is left."""


def binds_every_start(order: OrderRecord) -> bool:
    """Whether the next start of the instance is bound as well."""
    return order.sticky and order.kind != "end"


def binds(order: OrderRecord, incarnation: str) -> bool:
    """Whether ``order`` concerns ``incarnation`` at all."""
    return binds_every_start(order) or order.incarnation == incarnation


def meaning(order: OrderRecord | None, incarnation: str) -> Meaning:
    """What ``incarnation`` has to do, given the order that stands."""
    if order is None or order.kind == "undrain" or not binds(order, incarnation):
        return "serve"
    return order.kind
