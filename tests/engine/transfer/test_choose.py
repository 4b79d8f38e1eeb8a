"""Which engine a pair uses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcore.config.engine import ENGINE
from pdcore.engine.transfer import choose
from pdcore.errors import PeerGone

pytestmark = pytest.mark.unit

engines = st.lists(st.sampled_from(["shm", "tcp", "mooncake", "later"]), unique=True)


def test_neighbours_share_memory_and_all_others_speak_tcp() -> None:
    auto = choose.engine_names("auto")
    assert choose.choose(auto, auto, same_machine=True) == ("shm", "tcp")
    assert choose.choose(auto, auto, same_machine=False) == ("tcp",)


def test_mooncake_is_used_when_both_ask_for_it_and_never_by_auto() -> None:
    assert choose.choose(("mooncake",), ("mooncake",), same_machine=False) == ("mooncake",)
    assert choose.choose(choose.engine_names("auto"), ("mooncake",), same_machine=False) == ()


@given(engines, engines, st.booleans())
def test_what_is_chosen_is_common_and_reaches(own: list[str], peer: list[str], same_machine: bool) -> None:
    chosen = choose.choose(own, peer, same_machine=same_machine)
    reaching = {name for name in own if same_machine or name != "shm"}
    assert set(chosen) == reaching & set(peer)
    assert len(chosen) == len(set(chosen))


def test_every_engine_that_may_be_named_is_known() -> None:
    for name in ("shm", "tcp", "mooncake", "memfabric"):
        assert choose.engine_names(name) == (name,)


def test_the_setting_knows_the_same_names() -> None:
    [setting] = [setting for setting in ENGINE if setting.name == "transfer_engine"]
    assert [setting.parse(name) for name in choose.SETTINGS] == list(choose.SETTINGS)
    with pytest.raises(ValueError, match=", ".join(choose.SETTINGS)):
        setting.parse("nixl")


def test_offers_read_as_they_were_written_and_nonsense_among_them_is_left_out() -> None:
    document = choose.offers_document({"shm": {"engine": "shm", "boot_id": "b"}, "tcp": {"port": 1}})
    offers = choose.read_offers(document)
    assert choose.offers_document(offers) == document
    assert choose.under_boot(offers, "b")
    assert not choose.under_boot(offers, "c")
    assert choose.read_offers({"engines": {"tcp": 7, "shm": {}}}) == {"shm": {}}
    nothings: list[dict[str, object]] = [{}, {"engines": []}, {"engine": "shm"}]
    for nothing in nothings:
        with pytest.raises(PeerGone):
            choose.read_offers(nothing)
