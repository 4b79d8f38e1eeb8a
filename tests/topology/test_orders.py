"""Whom an order binds, and what it means for the one it binds."""

from __future__ import annotations

import pytest

from pdcore.topology.orders import Meaning, binds_every_start, meaning
from pdcore.topology.records import OrderRecord
from tests.support.fleet import order_record

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("order", "mine", "others"),
    [
        (None, "serve", "serve"),
        (order_record("drain"), "drain", "serve"),
        (order_record("drain", sticky=True), "drain", "drain"),
        (order_record("drain", None, sticky=True), "drain", "drain"),
        (order_record("undrain", None, sticky=True), "serve", "serve"),
        (order_record("end"), "end", "serve"),
        (order_record("end", sticky=True), "end", "serve"),
    ],
)
def test_an_order_means_something_to_whom_it_binds(
    order: OrderRecord | None, mine: Meaning, others: Meaning
) -> None:
    assert meaning(order, "inc-1") == mine
    assert meaning(order, "another") == others


def test_an_order_to_end_binds_no_later_start() -> None:
    assert binds_every_start(order_record("drain", sticky=True))
    assert not binds_every_start(order_record("end", sticky=True))
