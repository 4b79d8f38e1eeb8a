from __future__ import annotations

import pytest

from pdcore.engine.departure import has_departed, has_lost_a_rank
from pdcore.engine.records import instance_record, rank_records
from pdcore.topology import codec, keys
from pdcore.topology.keys import RankId, RankPosition
from pdcore.topology.records import DepartureReason, DepartureRecord
from pdcore.topology.topology import Stored, Topology, build
from tests.engine.test_peers import identity, ready

pytestmark = pytest.mark.unit

ZERO, ONE = RankPosition(0, 0, 0), RankPosition(0, 0, 1)


def seen(
    *ranks: RankPosition,
    stands: bool = True,
    reason: DepartureReason | None = "died",
    incarnation: str = "one",
) -> Topology:
    """An instance of two ranks, of which these have records."""
    who, said = identity("decode"), ready(ZERO, ONE)
    entries = {}
    if stands:
        entries[keys.instance("decode-0")] = codec.encode(instance_record(who, said, "serving"))
    for position, record in rank_records("one", "here", ready(*ranks)).items():
        entries[keys.rank(RankId("decode-0", position))] = codec.encode(record)
    if reason is not None:
        departed = DepartureRecord(incarnation=incarnation, reason=reason, by="registrar")
        entries[keys.departure("decode-0")] = codec.encode(departed)
    return build({key: Stored(value, 5) for key, value in entries.items()}, 5)


def test_a_rank_that_died_is_lost_and_its_incarnation_departed() -> None:
    assert has_lost_a_rank(seen(ZERO), "decode-0", "one")
    assert has_departed(seen(ZERO), "decode-0", "one")
    for others in (seen(ZERO, reason="silent"), seen(ZERO, reason=None), seen(ZERO, incarnation="old")):
        assert not has_lost_a_rank(others, "decode-0", "one")
        assert not has_departed(others, "decode-0", "one")


def test_an_instance_that_is_gone_has_departed_but_lost_no_rank() -> None:
    """Whoever took its keys away has reasons of his own, which its leader hears elsewhere."""
    for reason in ("left", "drained", "ordered", "died"):
        gone = seen(stands=False, reason=reason)
        assert has_departed(gone, "decode-0", "one")
        assert not has_lost_a_rank(gone, "decode-0", "one")


def test_a_whole_instance_stands() -> None:
    assert not has_departed(seen(ZERO, ONE), "decode-0", "one")
    assert not has_lost_a_rank(seen(ZERO, ONE), "decode-0", "one")
