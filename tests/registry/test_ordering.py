"""What an order writes, given what stands; and that it is written on nothing else."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdcore.errors import StoreUnavailable
from pdcore.registry import ordering
from pdcore.registry.memory import MemoryStore
from pdcore.registry.operator import TRIES, give_order
from pdcore.registry.ordering import Give, Leave, Refuse, Standing, TakeBack, is_carried_out
from pdcore.registry.store import Committed, Condition, Put, Stored, Write
from pdcore.topology import codec
from pdcore.topology.keys import Keyspace
from pdcore.topology.orders import DRAINED, meaning
from pdcore.topology.records import NOTHING, InstanceRecord, OrderKind, OrderRecord
from tests.support.fleet import complete, instance_record, order_record, topology_of

pytestmark = pytest.mark.unit

SPACE = Keyspace(cluster="test")
INSTANCE, ORDER = SPACE.view + "instances/p0", SPACE.view + "orders/p0"
RECORD = instance_record()


def standing(order: OrderRecord | bytes | None = None, *, up: bool = True, claimed: bool = True) -> Standing:
    value = order if isinstance(order, bytes | None) else codec.encode(order)
    return Standing(
        keyspace=SPACE,
        instance_id="p0",
        instance=Stored(codec.encode(RECORD), 3, 3) if up else None,
        order=None if value is None else Stored(value, 5, 5),
        claimed=claimed,
        others=("p01", "d0"),
    )


def drain(found: Standing, *, sticky: bool = False) -> ordering.Decision:
    return ordering.drain(found, sticky=sticky, by="me")


def test_an_order_to_drain_binds_the_incarnation_that_stands_unless_sticky() -> None:
    bound, sticky = drain(standing()), drain(standing(), sticky=True)
    assert isinstance(bound, Give)
    assert isinstance(sticky, Give)
    assert bound.order == OrderRecord(kind="drain", incarnation="inc-1", sticky=False, by="me")
    assert sticky.order == OrderRecord(kind="drain", incarnation=None, sticky=True, by="me")


@pytest.mark.parametrize("order", [order_record("drain", "older"), order_record("undrain"), b"garbage"])
def test_an_order_that_means_nothing_here_is_replaced(order: OrderRecord | bytes) -> None:
    assert isinstance(drain(standing(order)), Give)
    assert isinstance(ordering.end(standing(order), by="me"), Give)


def test_what_is_so_already_is_left() -> None:
    assert isinstance(drain(standing(order_record("drain"))), Leave)
    assert isinstance(drain(standing(order_record("drain", None, sticky=True)), sticky=True), Leave)
    sticky = order_record("drain", None, sticky=True)
    assert drain(standing(sticky)) == Leave(
        order=sticky, sentence="p0 is ordered to drain already, by test"
    )  # not loosened
    assert isinstance(drain(standing(order_record("drain")), sticky=True), Give)
    assert isinstance(ordering.end(standing(order_record("end")), by="me"), Leave)
    assert isinstance(ordering.undrain(standing()), Leave)


def test_one_start_can_be_ordered_to_end_while_its_record_is_withdrawn() -> None:
    for found in (standing(), standing(up=False), standing(order_record("end", "older"), up=False)):
        ended = ordering.end_start(found, "inc-1", by="me")
        assert isinstance(ended, Give)
        assert ended.order == OrderRecord(kind="end", incarnation="inc-1", sticky=False, by="me")
    assert isinstance(ordering.end_start(standing(), "older", by="me"), Refuse), "not the one that stands"
    again = ordering.end_start(standing(order_record("end"), up=False), "inc-1", by="me")
    assert isinstance(again, Leave)


def test_nobody_orders_around_an_order_to_end_or_a_sticky_one() -> None:
    for decision in (
        drain(standing(order_record("end"))),
        ordering.undrain(standing(order_record("end"))),
        ordering.end(standing(order_record("drain", None, sticky=True)), by="me"),
    ):
        assert isinstance(decision, Refuse)
        assert "by test" in decision.sentence


@pytest.mark.parametrize("order", [order_record("drain"), order_record("end", "older"), b"garbage"])
def test_an_order_is_taken_back_also_when_its_instance_is_gone(order: OrderRecord | bytes) -> None:
    assert isinstance(ordering.undrain(standing(order)), TakeBack)
    assert isinstance(ordering.undrain(standing(order, up=False, claimed=False)), TakeBack)


def test_an_unknown_instance_is_refused_with_what_it_may_have_been() -> None:
    gone = standing(up=False, claimed=False)
    for decision in (
        drain(gone),
        drain(gone, sticky=True),
        ordering.undrain(gone),
        ordering.end(gone, by=""),
    ):
        assert decision == Refuse(sentence="no instance p0 is registered; did you mean p01 or d0?")
    assert isinstance(drain(standing(up=False)), Refuse)
    assert isinstance(drain(standing(up=False), sticky=True), Give)  # its id is claimed: it may come back


orders = st.builds(
    OrderRecord,
    kind=st.sampled_from(["drain", "undrain", "end"]),
    incarnation=st.sampled_from(["inc-1", "older", None]),
    sticky=st.booleans(),
    by=st.just("test"),
    extra=st.just(NOTHING),
)


@settings(max_examples=60, deadline=None)
@given(order=st.none() | orders, asked=st.sampled_from(["drain", "sticky", "undrain", "end"]))
def test_whatever_stands_what_was_asked_holds_afterwards_or_is_refused(
    order: OrderRecord | None, asked: str
) -> None:
    found = standing(order)
    decisions = {
        "drain": drain(found),
        "sticky": drain(found, sticky=True),
        "undrain": ordering.undrain(found),
        "end": ordering.end(found, by="me"),
    }
    decision = decisions[asked]
    if isinstance(decision, Refuse):
        assert found.given is not None
        return
    after = {Give: getattr(decision, "order", None), Leave: found.given, TakeBack: None}[type(decision)]
    wanted = {"sticky": "drain", "undrain": "serve"}.get(asked, asked)
    assert meaning(after, "inc-1") == wanted
    if asked == "sticky":
        assert meaning(after, "the next start") == "drain"
    if isinstance(decision, Give):
        assert codec.decode("orders/p0", codec.encode(decision.order)) == decision.order


@pytest.mark.parametrize(
    ("kind", "record", "done"),
    [
        ("drain", RECORD, False),
        ("drain", RECORD._replace(state="draining"), False),
        ("drain", RECORD._replace(state="draining", extra={DRAINED: True}), True),
        ("drain", RECORD._replace(incarnation="inc-2"), True),
        ("undrain", RECORD._replace(state="draining"), False),
        ("undrain", RECORD, True),
        ("end", RECORD, False),
        ("end", RECORD._replace(incarnation="inc-2"), True),
    ],
)
def test_what_has_happened_is_seen_in_the_view(kind: OrderKind, record: InstanceRecord, done: bool) -> None:
    instance = topology_of(complete("p0", record)).instances.get("p0")
    incarnation = None if kind == "undrain" else "inc-1"
    assert is_carried_out(kind, incarnation, instance) == done
    assert is_carried_out(kind, incarnation, None) == (kind != "undrain")


class RivalledStore(MemoryStore):
    """Somebody else writes just before each of our commits, as long as there are ``rivals``."""

    rivals: tuple[Put, ...] = ()

    async def commit(self, conditions: tuple[Condition, ...], writes: tuple[Write, ...]) -> Committed:
        if self.rivals:
            rival, *others = self.rivals
            self.rivals = tuple(others)
            await super().commit((), (rival,))
        return await super().commit(conditions, writes)


def restarted(incarnation: str) -> Put:
    return Put(INSTANCE, codec.encode(RECORD._replace(incarnation=incarnation)))


@pytest.mark.parametrize("order", ["drain", "end"])
async def test_an_order_binds_who_stands_when_it_is_written(order: str) -> None:
    store = RivalledStore()
    await store.commit((), (restarted("inc-1"),))
    store.rivals = (restarted("inc-2"), Put(ORDER, codec.encode(order_record("undrain"))))
    decide = drain if order == "drain" else partial(ordering.end, by="me")
    ordered = await give_order(store, SPACE, "p0", decide)
    written = await store.get(ORDER)
    assert written is not None
    assert written.mod_revision == ordered.revision
    assert written.lease is None or order == "end"
    record = codec.decode("orders/p0", written.value)
    assert isinstance(record, OrderRecord)
    assert (record.kind, record.incarnation) == (order, "inc-2")


async def test_an_instance_that_never_rests_is_given_up() -> None:
    store = RivalledStore()
    await store.commit((), (restarted("inc-1"),))
    store.rivals = tuple(restarted(f"inc-{number}") for number in range(TRIES))
    with pytest.raises(StoreUnavailable, match="p0 changed 5 times"):
        await give_order(store, SPACE, "p0", drain)
    assert await store.get(ORDER) is None
