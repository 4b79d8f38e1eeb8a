"""What the router's bench concludes from samples: medians, the best peer of the run, our limits."""

from __future__ import annotations

import pytest

from bench.router.loads import Load, Sample
from bench.router.targets import BARE, DIRECT, OURS, TARGETS
from bench.router.verdicts import LOADS, ONE, PACED, SMALL, Results, judged, table

pytestmark = pytest.mark.unit


def sample(cpu_us: float, p50_ms: float = 1.0, rss_mb: float = 50.0) -> Sample:
    made = {"cpu_us": cpu_us, "per_s": 1.0, "p50_ms": p50_ms, "p99_ms": 2.0, "rss_mb": rss_mb, "failed": 0.0}
    return made


def results(**cpu_us: list[float]) -> Results:
    """The same samples for every load, by the target's name with underscores."""
    found: dict[tuple[str, str], list[Sample]] = {}
    for name, values in cpu_us.items():
        for load in LOADS:
            found[name.replace("_", "-"), load.name] = [sample(value) for value in values]
    return Results(found)


def met(found: Results, name: str) -> tuple[str, bool]:
    (figure,) = (one for one in judged(found) if one.name == name and one.unit.startswith("us CPU"))
    return figure.beside, figure.met


def test_we_are_judged_by_the_best_peer_as_it_comes_and_by_medians() -> None:
    peers = {"smg": [300.0, 900.0, 310.0], "vllm": [400.0], "vllm_fast": [100.0]}
    name = f"{OURS}: {SMALL.name}"
    assert met(results(pdcore=[387.0], **peers), name) == ("smg", True)
    assert met(results(pdcore=[388.0], **peers), name) == ("smg", False)


def test_chunks_are_judged_by_the_best_of_all_peers() -> None:
    found = results(pdcore=[91.0], smg=[300.0], vllm_fast=[100.0])
    assert met(found, f"{OURS}: {PACED.name}") == ("vllm-fast", False)


def test_what_a_router_adds_is_more_than_no_router() -> None:
    found: dict[tuple[str, str], list[Sample]] = {
        (OURS, ONE.name): [sample(1, p50_ms=0.5)],
        ("smg", ONE.name): [sample(1, p50_ms=0.4)],
        (DIRECT, ONE.name): [sample(1, p50_ms=0.1)],
    }
    (added,) = (one for one in judged(Results(found)) if "added" in one.name)
    assert added.value == pytest.approx(0.4)
    assert added.reference == pytest.approx(0.3)
    assert not added.met


def test_what_was_not_measured_is_left_out() -> None:
    assert [one.unit for one in judged(results(pdcore=[1.0]))] == ["MB resident"] * len(LOADS)
    assert judged(Results({})) == []
    assert len(table(results(smg=[1.0, 2.0]), SMALL)) == 2


def test_each_load_and_each_target_has_a_name_of_its_own() -> None:
    loads: list[Load] = list(LOADS)
    assert len({load.name for load in loads}) == len(loads)
    assert {OURS, BARE, DIRECT} <= set(TARGETS)
