"""Random histories of a small keyspace: a dumb model of the store beside what readers are handed."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from pdcore.topology.codec import encode
from pdcore.topology.records import (
    DepartureRecord,
    DesiredRecord,
    DocumentRecord,
    OrderRecord,
    Record,
    RouterRecord,
    StoreIdRecord,
)
from pdcore.topology.topology import KeyChange, Stored
from tests.support.fleet import instance_record, rank_record

Write = dict[str, bytes | None]
GARBAGE = (b"", b"{}", b"[[[", b'{"v": 7}', b"\xff", b"x" * 70000)


def _choices() -> dict[str, list[bytes]]:
    incarnations = ("inc-1", "inc-2")
    p0 = [
        instance_record(incarnation=i, tp_size=2, state=s)
        for i in incarnations
        for s in ("starting", "serving")
    ]
    d0 = [
        instance_record("decode", incarnation=i, state=s)
        for i in incarnations
        for s in ("serving", "draining")
    ]
    ranks = [rank_record(incarnation=i, rank_port=port) for i in incarnations for port in (1, 2)]
    departures = [DepartureRecord(incarnation=i, reason="died", by="") for i in incarnations]
    orders = [
        OrderRecord(kind=k, incarnation="inc-1", sticky=False, by="") for k in ("drain", "undrain", "end")
    ]
    desired = [DesiredRecord(active=n, candidate=None, deadline=None, replicas={}) for n in (1, 2)]
    choices: dict[str, list[Record]] = {
        "instances/p0": [*p0],
        "ranks/p0/0.0.0": [*ranks],
        "ranks/p0/0.0.1": [*ranks],
        "ranks/p0/0.0.2": [*ranks],
        "departures/p0": [*departures],
        "orders/p0": [*orders],
        "instances/d0": [*d0],
        "ranks/d0/0.0.0": [*ranks],
        "routers/r0": [RouterRecord(url="http://h:1", admin_url="http://h:1", version=v) for v in "12"],
        "groups/g/desired": [*desired],
        "groups/g/generations/1": [DocumentRecord(document={"n": 1})],
        "store_id": [StoreIdRecord(store_id="s1"), StoreIdRecord(store_id="s2")],
        "foreign/key": [DocumentRecord(document={})],
    }
    return {key: [encode(record) for record in records] for key, records in choices.items()}


_CHOICES = _choices()
_puts = st.sampled_from(
    [(key, value) for key, values in _CHOICES.items() for value in (*values, *values, *GARBAGE[:2])]
    + [("instances/p0", garbage) for garbage in GARBAGE]
)
_deletes = st.sampled_from([(key, None) for key in _CHOICES])
writes: st.SearchStrategy[Write] = st.lists(_puts | _deletes, min_size=1, max_size=6).map(dict)


@dataclass(frozen=True)
class History:
    """What was written, one element per revision, the first at revision 1."""

    writes: list[Write]

    @property
    def end(self) -> int:
        return len(self.writes)

    def listed(self, revision: int | None = None) -> dict[str, Stored]:
        """The keyspace as a list at ``revision`` (the newest unless given) shows it."""
        held: dict[str, Stored] = {}
        for at, write in enumerate(self.writes[: self.end if revision is None else revision], start=1):
            for key, value in write.items():
                if value is None:
                    held.pop(key, None)
                else:
                    held[key] = Stored(value, at)
        return held

    def changes(self, first: int, last: int) -> list[KeyChange]:
        """What a watch from revision ``first`` delivers up to ``last``."""
        return [
            KeyChange(key, value, at)
            for at in range(first, last + 1)
            for key, value in self.writes[at - 1].items()
        ]


histories: st.SearchStrategy[History] = st.lists(writes, min_size=1, max_size=8).map(History)
