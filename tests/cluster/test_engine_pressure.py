"""Too little memory, and peers that stop: everybody is answered, in time and with nobody else's text."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import figures
from tests.cluster.canaries import Callers, Canaries, Question, ask, calling
from tests.cluster.conftest import Fleet
from tests.support.cluster import Cluster, Engine, Router
from tests.support.eventually import eventually_now

pytestmark = pytest.mark.cluster

START_S: Final = 120.0
REST_S: Final = 20.0
ALL_S: Final = 150.0
BUDGET_S: Final = 3.0
"""Of every request through the hasty router."""
RANK_DIED: Final = 70
STOPPED_S: Final = 1.5
RATE_S: Final = 8.0
ENDED_S: Final = 45.0
EIGHT_BLOCKS: Final = ("--kv-tokens", "128", "--max-queue", "512")
REQUESTS: Final = 200


@pytest.fixture(scope="session")
def canaries(tiny_model: Path) -> Canaries:
    return Canaries(tiny_model)


LARGE: Final = Question("y" * 140, 4, "")
GROWING: Final = Question("z" * 60, 120, "")
OUTCOMES: Final = {LARGE: {(400, "context_length_exceeded")}, GROWING: {(502, "abort_oom")}}
RIGHT: Final = {(200, ""), (503, "preempted_oom")}


def mixed(canaries: Canaries) -> list[Question]:
    """Most fit, the longer ones only alone; some never do, some outgrow the pool while they generate."""
    fitting = canaries.questions(40, seed=5, longest=90, most=32)
    dice = random.Random(7)
    asked = [LARGE] * 10 + [GROWING] * 10
    asked += [dice.choice(fitting) for _ in range(REQUESTS - len(asked))]
    dice.shuffle(asked)
    return asked


def test_two_hundred_requests_finish_in_a_pool_of_eight_blocks(cluster: Cluster, canaries: Canaries) -> None:
    processes = cluster.pair(*EIGHT_BLOCKS)
    asked = mixed(canaries)
    began = time.monotonic()
    with ThreadPoolExecutor(REQUESTS) as pool:
        futures = [
            pool.submit(ask, processes[2], one, timeout_s=ALL_S, ignore_eos=one is GROWING) for one in asked
        ]
        answers = [future.result(ALL_S) for future in futures]
    took_s = time.monotonic() - began
    for answer in answers:
        assert (answer.status, answer.code) in OUTCOMES.get(answer.question, RIGHT), answer
    canaries.check([answer for answer in answers if answer.question.text])
    right = sum(answer.status == 200 for answer in answers)
    assert right > REQUESTS / 2
    for process in processes:
        eventually_now(partial(is_at_rest, process), REST_S, f"{process.url} at rest")
    figures.show("200 requests on 8 blocks", took_s=took_s, right=right)


def is_at_rest(process: Engine | Router) -> bool:
    return not process.leftovers()


def holds_still(engine: Engine) -> None:
    """Leader and ranks stop; its registrar goes on, as on a machine that is merely overloaded."""
    for rank in engine.ranks():
        rank.suspend()
    engine.pause()


def test_a_prefill_that_stops_costs_the_other_nothing_and_is_ended(fleet: Fleet, canaries: Canaries) -> None:
    stuck, other, decode = fleet.engines
    questions = canaries.questions(24, seed=11, longest=200, most=16)
    with (
        calling(fleet.hasty, questions, 4, **fleet.cluster.bootstrap(stuck)) as at_stuck,
        calling(fleet.hasty, questions, 4, **fleet.cluster.bootstrap(other)) as at_other,
    ):
        eventually_now(lambda: len(at_stuck.answers) > 20 and len(at_other.answers) > 20, 30, "a load")
        began = time.monotonic()
        time.sleep(RATE_S)
        stopped_at = time.monotonic()
        holds_still(stuck)
        time.sleep(RATE_S)
        until = time.monotonic()
        assert decode.gauge("pdcore_engine_kv_blocks_quarantined"), "memory that the stopped one may write"
        eventually_now(lambda: not stuck.running, ENDED_S, "ended by decode's order")
        ended_s = time.monotonic() - stopped_at
    eventually_now(partial(is_at_rest, decode), REST_S, "memory came back")
    assert "ordered to end; ranks killed" in stuck.output()
    before = len(at_other.right_between(began, stopped_at)) / RATE_S
    during = len(at_other.right_between(stopped_at, until)) / RATE_S
    canaries.check(at_stuck.answers + at_other.answers)
    assert {answer.status for answer in at_other.answers} == {200}
    assert {answer.status for answer in at_stuck.answers} <= {200, 400, 502, 503, 504}
    assert during >= 0.9 * before
    figures.show("a prefill stopped, the other's rate", before=before, during=during, ended_s=ended_s)


def ranks_stop(engine: Engine) -> None:
    (rank,) = engine.ranks()
    rank.suspend()
    time.sleep(STOPPED_S)
    rank.resume()


def leader_stops(engine: Engine) -> None:
    engine.pause()
    time.sleep(STOPPED_S)
    engine.resume()


def leader_dies(engine: Engine) -> None:
    engine.kill()
    engine.start()


def rank_dies(engine: Engine) -> None:
    (rank,) = engine.ranks()
    rank.kill()
    assert engine.wait(ENDED_S) == RANK_DIED
    engine.start()


FAULTS: Final = (ranks_stop, leader_stops, leader_dies, rank_dies)


def test_no_answer_is_wrong_whatever_stops_or_dies_meanwhile(fleet: Fleet, canaries: Canaries) -> None:
    questions = canaries.questions(24, seed=13, longest=200, most=24)
    faults = [(fault, engine) for fault in FAULTS for engine in (fleet.prefill, fleet.decode)]
    with calling(fleet.hasty, questions, 6) as callers:
        wait_for_answers(callers)
        for fault, engine in faults:
            fault(engine)
            engine.wait_ready(START_S)
            wait_for_answers(callers)
    canaries.check(callers.answers)
    statuses = Counter(answer.status for answer in callers.answers)
    assert set(statuses) <= {200, 502, 503, 504}
    slowest_s = max(answer.took_s for answer in callers.answers)
    assert slowest_s < BUDGET_S + 1
    eventually_now(lambda: not fleet.leftovers(), REST_S, "a fleet at rest")
    failed = {str(status): count for status, count in statuses.items() if status != 200}
    figures.show("stopped and killed", right=statuses[200], slowest_answer_s=slowest_s, **failed)


def wait_for_answers(callers: Callers) -> None:
    """Until all is well again."""
    since = time.monotonic()
    eventually_now(lambda: len(callers.right_between(since, math.inf)) >= 20, START_S, "right answers")
