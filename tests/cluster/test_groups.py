"""A native group on this machine: changed, hurt, scaled and restarted under load, and no request fails."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.group_stage import GROUP, Stage, engines, is_full
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually_now
from tests.support.processes import ChildProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Stage]:
    """2P1D and a router."""
    directory = tmp_path_factory.mktemp("group")
    with EtcdServer(directory) as etcd:
        stage = Stage(directory, tiny_model, etcd)
        file = stage.file(2, 1)
        stage.group("apply", str(file))
        with stage.up(file):
            stage.wait_status(lambda now: now["state"] == "running", "running")
            yield stage


@pytest.fixture
def group(running: Stage) -> Stage:
    """2P1D again, whatever the test before made of it."""
    running.group("scale", GROUP, "--prefill", "2", "--decode", "1")
    running.wait_full()
    return running


def test_requests_flow_and_only_the_router_is_published(group: Stage) -> None:
    now = group.status()
    assert now["endpoints"] == [group.url]
    assert {role: one["ready"] for role, one in now["roles"].items()} == {
        "prefill": 2,
        "decode": 1,
        "router": 1,
    }
    with group.asked(8, 16) as clients:
        eventually_now(lambda: clients.tally.answered > 40, 120, "forty answers")


def test_a_saved_change_restarts_nothing_and_a_killed_prefill_comes_back_as_it_was(group: Stage) -> None:
    before = group.status()
    generation = before["active"]
    with group.asked(16, 32):
        said = group.group("apply", str(group.file(2, 1, "--max-model-len=128")))
        assert "runs on until pdcore group restart" in said
        assert group.status()["stale"]
        killed = f"{GROUP}-{generation}-prefill-1"
        old = group.record(f"instances/{killed}")
        os.kill(group.member(killed)["pid"], signal.SIGKILL)
        group.wait_status(
            lambda now: is_full(now) and group.member(killed)["exits"] == 1, "the member is back"
        )
        new = group.record(f"instances/{killed}")
    assert new["incarnation"] != old["incarnation"]
    assert new["generation"] == generation
    assert new["compat"] == old["compat"], "it was started from its generation, not from what was saved"
    assert group.status()["active"] == generation


def test_scaling_up_and_down_under_load_fails_nothing(group: Stage) -> None:
    with group.asked(16, 32):
        before = engines(group.status())
        group.group("scale", GROUP, "--prefill", "3", "--decode", "2", "--wait")
        grown = group.wait_full()
        assert set(before) < set(engines(grown))
        group.group("scale", GROUP, "--prefill", "1", "--decode", "1", "--wait")
        assert len(engines(group.wait_full())) == 2


def test_a_blue_green_restart_with_200_requests_in_flight_fails_nothing(group: Stage) -> None:
    generation = group.status()["active"]
    with group.asked(200, 64):
        group.group("apply", str(group.file(2, 1, "--max-model-len=256")))
        said = group.group("restart", GROUP, "--blue-green")
    assert "is done" in said
    now = group.wait_full()
    assert now["active"] == generation + 1
    assert not now["stale"]
    record = group.record(f"instances/{GROUP}-{generation + 1}-decode-1")
    assert record["compat"]["context_length"] == 256


def test_a_candidate_that_cannot_start_is_given_up_by_itself(group: Stage, tmp_path: Path) -> None:
    before = group.status()
    broken = tmp_path / "broken"
    shutil.copytree(group.model, broken)
    with group.asked(16, 32):
        group.group("apply", str(group.file(2, 1, model=broken)))
        shutil.rmtree(broken)
        done = group.pdcore("group", "restart", GROUP, "--blue-green")
    assert done.returncode == 1
    assert "rolled back" in done.stderr
    assert "is no directory" in done.stderr
    now = group.wait_full()
    assert (now["active"], engines(now)) == (before["active"], engines(before))
    assert now["last_restart"]["result"] == "rolled back"
    group.group("apply", str(group.file(2, 1)))


def test_what_must_not_be_is_refused_in_one_sentence(group: Stage) -> None:
    part = group.pdcore("group", "restart", GROUP, "--role", "prefill")
    assert part.returncode == 2
    assert "only a whole group is restarted" in part.stderr
    group.group("restart", GROUP, "--no-wait")
    second = group.pdcore("group", "restart", GROUP)
    assert second.returncode == 9
    assert "is under way" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1
    assert group.pdcore("group", "scale", GROUP, "--prefill", "3").returncode == 9
    assert group.pdcore("group", "status", "nobody").returncode == 2
    group.wait_full()


def test_a_member_forced_in_by_hand_is_never_paired_and_named_with_both_values(group: Stage) -> None:
    generation = group.status()["active"]
    right = f"{GROUP}-{generation}-decode-1"
    record, rank = group.record(f"instances/{right}"), group.record(f"ranks/{right}/0.0.0")
    length = record["compat"]["context_length"]
    wrong = {**record, "incarnation": "forced", "compat": {**record["compat"], "context_length": 77}}
    group.put("instances/forced", wrong)
    group.put("ranks/forced/0.0.0", {**rank, "incarnation": "forced"})
    group.put("instances/older", {**record, "incarnation": "older", "generation": generation + 40})
    group.put("ranks/older/0.0.0", {**rank, "incarnation": "older"})
    try:
        eventually_now(lambda: "forced" in group.seen_by_router()["instances"], 10, "seen")
        excluded = group.seen_by_router()["excluded"]["tiny"]
        assert f"context_length: prefill has {length}, decode 77" in " ".join(excluded["forced"])
        older = f"is of generation {generation + 40}, active is {generation}"
        assert older in excluded["older"]
        for _ in range(20):
            answer = group.ask()
            assert answer.status_code == 200
            assert answer.headers["x-pdcore-pair"].endswith(right)
        assert group.pdcore("instance", "drain", right, "--wait").returncode == 0
        refused = group.ask()
        assert refused.status_code == 503
        detail = refused.json()["error"]["detail"]
        assert f"context_length: prefill has {length}, decode 77" in " ".join(detail["excluded"]["forced"])
        assert "stranger" in {one["code"] for one in group.status()["degradations"]}
    finally:
        group.pdcore("instance", "undrain", right)
        group.etcd.etcdctl("del", "--prefix", "/pdcore/default/view/instances/forced")
        group.etcd.etcdctl("del", "--prefix", "/pdcore/default/view/ranks/forced")
        group.etcd.etcdctl("del", "--prefix", "/pdcore/default/view/instances/older")
        group.etcd.etcdctl("del", "--prefix", "/pdcore/default/view/ranks/older")
    group.wait_full()


def test_two_supervisors_run_no_member_twice_and_one_takes_over_from_the_other(
    tmp_path: Path, tiny_model: Path
) -> None:
    with EtcdServer(tmp_path) as etcd:
        stage = Stage(tmp_path, tiny_model, etcd)
        file = stage.file(1, 1)
        stage.group("apply", str(file))
        with stage.up(file) as first, stage.up(file) as second:
            now = stage.wait_full()
            assert len({row["pid"] for row in now["members"]}) == 3
            (owner,) = {row["supervisor"] for row in now["members"]}
            holder, other = (first, second) if is_of(owner, first) else (second, first)
            assert stage.ask().status_code == 200
            holder.kill()
            stage.wait_status(
                lambda now: is_full(now) and all(is_of(row["supervisor"], other) for row in now["members"]),
                "the other one runs everybody",
            )
            assert stage.ask().status_code == 200
            stage.group("delete", GROUP, "--yes")
            assert stage.pdcore("group", "status", GROUP).returncode == 2
            assert not stage.etcd.etcdctl("get", "--prefix", "/pdcore/default/view/groups/")


def is_of(supervisor: str | None, up: ChildProcess) -> bool:
    return supervisor is not None and supervisor.endswith(f"-{up.pid}")
