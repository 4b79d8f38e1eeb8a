"""Whether an instance died, from what the keyspace shows and what the overlay has found out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdcore.registry.overlay.suspect import Overlay, Standing, Suspect
from pdcore.router.fate import Fate, fate
from pdcore.topology import codec, keys
from pdcore.topology.records import DepartureReason, DepartureRecord, Record
from pdcore.topology.topology import Stored, Topology, build
from tests.router.fleet import entries, record

pytestmark = pytest.mark.unit

KEY = ("p", "i1")
T0 = 1000.0


def view(incarnation: str | None, departed: DepartureReason | None = None) -> Topology:
    """A keyspace that shows this incarnation of p, and why i1 went."""
    found: dict[str, Record] = {}
    if incarnation is not None:
        found |= entries("p", record("prefill", "http://127.0.0.1:1", incarnation=incarnation))
    if departed is not None:
        found[keys.departure("p")] = DepartureRecord(incarnation="i1", reason=departed, by="")
    return build({key: Stored(codec.encode(one), 5) for key, one in found.items()}, 7)


def suspect(standing: Standing, heard_at: float = T0) -> Overlay:
    """An overlay that doubts i1."""
    one = Suspect(
        instance=view("i1").instances["p"],
        newest=1,
        cause="connection",
        standing=standing,
        listed=True,
        why="",
        since=T0,
        probe_at=T0,
        heard_at=heard_at,
    )
    return Overlay({"p": one})


@pytest.mark.parametrize(
    ("incarnation", "departed", "became"),
    [
        ("i1", None, "lives"),
        ("i2", None, "died"),
        (None, None, "died"),
        (None, "died", "died"),
        (None, "silent", "died"),
        (None, "left", "left"),
        (None, "drained", "left"),
        (None, "ordered", "left"),
        ("i2", "left", "left"),
    ],
)
def test_what_the_keyspace_says_of_who_is_no_suspect(
    incarnation: str | None, departed: DepartureReason | None, became: Fate
) -> None:
    assert fate(view(incarnation, departed), Overlay(), KEY, T0) == became


def test_a_departure_of_another_incarnation_explains_nothing() -> None:
    assert fate(view(None, "left"), Overlay(), ("p", "i0"), T0) == "died"


@pytest.mark.parametrize(
    ("standing", "heard_at", "became"),
    [
        ("gone", T0, "died"),
        ("doubted", T0, None),
        ("asked", T0, None),
        ("unproven", T0, None),
        ("kept", T0, None),
        ("kept", T0 + 1, "lives"),
    ],
)
def test_of_a_suspect_only_an_answer_since_then_counts(
    standing: Standing, heard_at: float, became: Fate | None
) -> None:
    assert fate(view("i1"), suspect(standing, heard_at), KEY, T0) == became


def test_a_suspect_of_another_incarnation_is_somebody_else() -> None:
    overlay = suspect("gone")
    other = replace(overlay.suspects["p"].instance, record=record("prefill", "http://h:1", incarnation="i2"))
    overlay = overlay.replaced({"p": replace(overlay.suspects["p"], instance=other)})
    assert fate(view("i1"), overlay, KEY, T0) == "lives"
