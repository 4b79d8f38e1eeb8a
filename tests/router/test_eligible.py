"""Who could serve, remembered: the same answers as when asked anew, and not for longer than they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from pdcore.router.eligible import Answer, CompatMemo, Filter
from pdcore.router.want import Want
from pdcore.topology.instance import Instance
from pdcore.topology.topology import Topology
from tests.router.fleet import MODEL
from tests.router.test_pick import decode, fleet, prefill

pytestmark = pytest.mark.unit

WANT = Want(model=MODEL)
ODD = (MODEL, "odd")
FLEETS = [
    fleet({"p0": prefill(models=ODD), "p1": prefill(), "d0": decode(), "d1": decode(models=ODD)}),
    fleet({"p0": prefill(state="draining"), "p1": prefill(), "d0": decode(models=("other",))}),
    fleet({"p0": prefill(), "d0": decode(), "d1": decode()}),
]
NAMES = ("p0", "p1", "d0", "d1")


@dataclass(frozen=True)
class Doubted:
    suspects: Set[str] = frozenset()
    gone: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


def matches(prefill_side: Instance, decode_side: Instance) -> tuple[str, ...]:
    return ("odd pair",) if {prefill_side.record.models, decode_side.record.models} == {ODD} else ()


def new_filter() -> Filter:
    return Filter(matches, {"bootstrap"})


@settings(deadline=None, max_examples=40)
@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from(FLEETS),
            st.sampled_from([WANT, Want(model="other"), structs.replace(WANT, pinned_prefill="p1")]),
            st.builds(
                Doubted,
                st.frozensets(st.sampled_from(NAMES)),
                st.dictionaries(st.sampled_from(NAMES), st.just("gone"), max_size=2),
            ),
        ),
        max_size=12,
    )
)
def test_what_is_remembered_is_what_would_be_found(asked: list[tuple[Topology, Want, Doubted]]) -> None:
    remembering = new_filter()
    for topology, want, doubts in asked:
        assert remembering(topology, want, doubts) == new_filter()(topology, want, doubts)


def test_an_answer_is_remembered_while_view_and_doubts_stay_the_same() -> None:
    remembering, topology = new_filter(), FLEETS[0]
    first = remembering(topology, WANT, Doubted())
    assert remembering(topology, structs.replace(WANT, draw=5), Doubted()) is first
    assert remembering(topology, WANT, Doubted(frozenset({"p0"}))) is not first


def test_a_request_with_wishes_of_its_own_is_asked_for_anew_and_changes_nothing_for_others() -> None:
    remembering, topology = new_filter(), FLEETS[0]
    first = remembering(topology, WANT, Doubted())
    refused = remembering(topology, structs.replace(WANT, excluded={("p0", "i1"): "full"}), Doubted())
    assert [one.instance_id for one in refused.sure.prefills] == ["p1"]
    assert refused.sure.reasons["p0"] == ("full",)
    assert remembering(topology, WANT, Doubted()) is first


def test_gone_instances_are_out_and_suspects_only_not_sure() -> None:
    found = new_filter()(FLEETS[0], WANT, Doubted(frozenset({"d1"}), {"p0": "refuses"}, {"d1": "fails"}))
    assert decodes_by_prefill(found) == ({"p1": ["d0", "d1"]}, {"p1": ["d0"]})
    assert found.sure.reasons["p0"] == ("refuses",)
    assert found.sure.reasons["d1"] == ("is picked last: fails",)
    assert "d1" not in found.all_fit.reasons


def decodes_by_prefill(found: Answer) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    def names(pairs: Sequence[tuple[Instance, Sequence[Instance]]]) -> dict[str, list[str]]:
        return {one.instance_id: [each.instance_id for each in decodes] for one, decodes in pairs}

    return names(found.all_fit.pairs), names(found.sure.pairs)


def test_the_memo_asks_once_per_version_and_stays_bounded() -> None:
    asked: list[str] = []

    def check(prefill_side: Instance, _: Instance) -> tuple[str, ...]:
        asked.append(prefill_side.instance_id)
        return ()

    memo = CompatMemo(check, entries=2)
    topology = fleet({"p": prefill(), "q": prefill(), "r": prefill(), "d": decode()})
    instances = topology.instances
    for who in ("p", "p", "q", "q", "r", "p"):
        memo(instances[who], instances["d"])
    assert asked == ["p", "q", "r", "p"]
