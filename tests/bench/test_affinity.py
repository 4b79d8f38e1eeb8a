"""The simulation at a small size: it is repeatable, sees what trees lose, and says which promise is broken."""

from __future__ import annotations

import pytest

from bench.affinity.comparison import POLICIES, compare
from bench.affinity.replacement import moved
from bench.affinity.routers import Affinity, Tree, Turns
from bench.affinity.simulation import INSTANCES, Cache, Outcome, simulate
from bench.affinity.verdicts import MANY, Row, documents, table
from bench.affinity.workloads import WORKLOADS, Request, conversations, tenants
from bench.affinity.workloads import Part as PromptPart

pytestmark = pytest.mark.unit


def test_a_cache_finds_the_beginning_it_has_and_drops_what_is_oldest() -> None:
    cache = Cache()
    assert cache.serve(0.0, [1, 2, 3]) == pytest.approx(0.004 + 3 * 64 / 20_000)
    cache.serve(10.0, [1, 2, 4])
    assert (cache.found, cache.asked) == (2, 6)
    cache.serve(20.0, list(range(100, 2100)))
    cache.serve(30.0, [1, 2, 3])
    assert cache.found == 2


def test_prompts_that_share_parts_share_blocks_and_text() -> None:
    system = PromptPart("system", (1,), 640)
    one = Request(0.0, 1, (system, PromptPart("user", (1, 0), 100)))
    other = Request(0.0, 2, (system, PromptPart("user", (2, 0), 100)))
    known = dict[tuple[int, tuple[object, ...]], int]()
    blocks = one.blocks(known), other.blocks(known)
    assert [len(chain) for chain in blocks] == [11, 11]
    assert blocks[0][:10] == blocks[1][:10]
    assert blocks[0][10] != blocks[1][10]
    assert one.prompt()[:2560] == other.prompt()[:2560]
    assert one.prompt() != other.prompt()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_is_a_function_of_its_size(workload: str) -> None:
    first, second = (WORKLOADS[workload](0.01) for _ in range(2))
    assert first == second
    assert 80 <= len(first) <= 120
    assert [one.at for one in first] == sorted(one.at for one in first)


def test_four_trees_lose_what_four_hashing_routers_keep() -> None:
    requests = tenants(5, 800, many=60)
    trees, ours = simulate(requests, MANY, Tree), simulate(requests, MANY, Affinity)
    assert ours.hit_rate > trees.hit_rate + 0.1
    assert ours == simulate(requests, MANY, Affinity)


def test_a_conversation_mostly_stays_where_it_is() -> None:
    requests = conversations(3, 1500, systems=5)
    ours, turns = simulate(requests, MANY, Affinity), simulate(requests, MANY, Turns)
    assert _mean_homes(ours) < 1.5 < _mean_homes(turns)
    assert ours.hit_rate > turns.hit_rate


def _mean_homes(outcome: Outcome) -> float:
    return sum(map(len, outcome.homes.values())) / len(outcome.homes)


def _outcome(hit_rate: float, p99_s: float = 1.0, imbalance: float = 1.0) -> Outcome:
    return Outcome(hit_rate=hit_rate, p50_s=0.1, p99_s=p99_s, imbalance=imbalance)


def _row(ours_alone: Outcome, ours: Outcome) -> Row:
    """Ours beside two rivals, each of which is the better one in something."""
    rivals = {
        ("trees", 1): _outcome(0.9),
        ("trees", 4): _outcome(0.6, 1.5),
        ("bushes", 1): _outcome(0.8),
        ("bushes", 4): _outcome(0.5, 1.0),
    }
    mine = {("prefix_affinity", 1): ours_alone, ("prefix_affinity", 4): ours}
    return Row(workload="multi-turn, 1 system prompt", outcomes=rivals | mine)


def test_every_promise_is_judged_beside_the_best_of_the_rivals() -> None:
    good = list(_row(_outcome(0.91), _outcome(0.9)).verdicts())
    assert [round(one.value, 3) for one in good] == [30.0, -1.0, 1.0, 1.0, 1.0]
    assert all(one.met for one in good)
    bad = list(_row(_outcome(0.79), _outcome(0.69, 1.1, 2.2)).verdicts())
    assert [one.met for one in bad] == [False] * 5
    assert list(Row(workload="w", outcomes={("prefix_affinity", 1): _outcome(1)}).verdicts()) == []


def test_a_table_and_documents_say_the_same() -> None:
    row = _row(_outcome(0.91), _outcome(0.69, 1.1, 2.2))
    lines, told = list(table([row])), list(documents([row]))
    assert len({len(line) for line in lines[:4]}) == 1
    assert [line.split()[-1] for line in lines[-5:]] == ["MISSED", "MISSED", "met", "MISSED", "MISSED"]
    assert [one["met"] for one in told if "met" in one] == [False, False, True, False, False]
    assert len(told) == len(row.outcomes) + 5


def test_one_in_eight_conversations_moves_with_the_instance_that_is_replaced() -> None:
    found = moved(conversations(3, 800, systems=5))
    assert found.inherited == pytest.approx(1 / 8, abs=0.01)
    assert found.same_id == pytest.approx(1 / 8, abs=0.01)
    assert 1 / 6 < found.other_id < 1 / 4


def test_comparing_runs_every_policy_with_one_router_and_with_four() -> None:
    row = compare("150 tenants, 6k context each", 0.01)
    assert row.moved is not None
    assert {one.promise for one in row.verdicts()} >= {"one of 8 replaced, conversations that move"}
    assert set(row.outcomes) == {(policy, routers) for policy in POLICIES for routers in (1, MANY)}
    assert INSTANCES == 8
