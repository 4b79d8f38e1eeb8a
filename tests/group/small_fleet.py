"""A ready prefill, a starting decode, a router, and an instance that died: keys and values of a view."""

from __future__ import annotations

from pdcore.topology import keys
from pdcore.topology.records import DepartureRecord, Record, RouterRecord
from tests.support.fleet import complete, instance_record, stored


def fleet() -> dict[str, bytes]:
    """Relative keys of the view and their values."""
    url = "http://127.0.0.1:8000"
    records: dict[str, Record] = {
        **complete("p0", instance_record("prefill", incarnation="prefill-0123456789")),
        keys.instance("d0"): instance_record("decode", state="starting"),
        keys.router("r0"): RouterRecord(url=url, admin_url=url, version="0.1.0"),
        keys.departure("p9"): DepartureRecord(incarnation="gone", reason="died", by="registrar"),
    }
    return {key: entry.value for key, entry in stored(records).items()}
