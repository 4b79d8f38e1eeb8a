"""What the doctor makes of a condition: each thing an operator has to know has its own finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdcore.config import StoreAccess
from pdcore.registry.doctor.access_verdicts import hosts, is_loopback, judge_access
from pdcore.registry.doctor.etcd_verdicts import DEFAULT_QUOTA, judge_etcd, judge_version
from pdcore.registry.doctor.finding import Finding, Level, is_failed
from pdcore.registry.doctor.redis_condition import RedisCondition
from pdcore.registry.doctor.redis_verdicts import judge_redis
from pdcore.registry.doctor.trial import Trial
from pdcore.registry.doctor.trial_verdicts import judge_trial
from pdcore.registry.etcd.condition import (
    EtcdCondition,
    ListedMember,
    MemberAnswer,
    MemberStatus,
    RaisedAlarm,
)
from pdcore.registry.store import Snapshot, Stored
from pdcore.topology import codec, keys
from pdcore.topology.keys import Keyspace
from pdcore.topology.records import Record
from tests.support.fleet import complete, instance_record, order_record

pytestmark = pytest.mark.unit

SPACE = Keyspace(cluster="test")
STATUS = MemberStatus(
    member_id=1,
    version="3.5.21",
    db_bytes=1 << 20,
    db_in_use_bytes=1 << 20,
    leader_id=1,
    raft_term=2,
    is_learner=False,
    errors=(),
)
REDIS = {
    "redis_version": "7.0.15",
    "role": "master",
    "aof_enabled": "1",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
}


def cluster(*statuses: MemberStatus | None, listed: int | None = None) -> EtcdCondition:
    answers = tuple(
        MemberAnswer(address=f"h{i}:2379", status=status, problem=None if status else "refused")
        for i, status in enumerate(statuses)
    )
    members = tuple(
        ListedMember(member_id=i, name=f"m{i}", peer_urls=(), client_urls=(), is_learner=False)
        for i in range(len(statuses) if listed is None else listed)
    )
    return EtcdCondition(answers=answers, members=members, alarms=(), problems=())


def level(findings: tuple[Finding, ...], about: str) -> Level:
    """The gravest finding about something."""
    levels = {finding.level for finding in findings if finding.about == about}
    return next(one for one in ("fail", "warn", "ok") if one in levels)


@pytest.mark.parametrize(("refused", "todo"), [(False, "start it"), (True, "it runs: mend --store-ca")])
def test_a_store_that_is_away_is_told_from_one_that_lets_nobody_in(refused: bool, todo: str) -> None:
    answer = MemberAnswer(address="h:1", status=None, problem="no", refused=refused)
    condition = EtcdCondition(answers=(answer,), members=(), alarms=(), problems=())
    (found,) = [one for one in judge_etcd(condition) if one.about == "reachable"]
    assert (found.level, (found.todo or "").startswith(todo)) == ("fail", True)


def test_one_member_that_refuses_us_is_no_reason_to_stop_looking() -> None:
    refusing = MemberAnswer(address="h:1", status=None, problem="no", refused=True)
    others = cluster(STATUS, STATUS)
    condition = replace(others, answers=(refusing, *others.answers))
    (found,) = [one for one in judge_etcd(condition) if one.about == "reachable"]
    assert (found.level, (found.todo or "").startswith("it runs: mend --store-ca")) == ("warn", True)


def test_three_current_members_are_all_right() -> None:
    findings = judge_etcd(cluster(STATUS, STATUS, STATUS))
    assert {finding.level for finding in findings} == {"ok"}
    assert not is_failed(findings)
    assert [finding.about for finding in findings] == [
        *("reachable", "alarms", "leader", "members", "version", "size"),
    ]


@pytest.mark.parametrize(
    ("condition", "about", "expected"),
    [
        (cluster(STATUS), "members", "warn"),
        (cluster(STATUS, STATUS), "members", "warn"),
        (cluster(*[STATUS] * 4), "members", "warn"),
        (cluster(STATUS, listed=3), "members", "warn"),
        (cluster(STATUS, STATUS, None), "reachable", "warn"),
        (cluster(None, None, None), "reachable", "fail"),
        (cluster(STATUS, STATUS, replace(STATUS, leader_id=0)), "leader", "fail"),
        (cluster(STATUS, STATUS, replace(STATUS, leader_id=9)), "leader", "fail"),
        (cluster(STATUS, STATUS, replace(STATUS, errors=("etcdserver: no leader",))), "leader", "warn"),
        (cluster(STATUS, STATUS, replace(STATUS, version="3.5.20")), "version", "warn"),
        (cluster(replace(STATUS, db_bytes=int(DEFAULT_QUOTA * 0.7))), "size", "warn"),
        (cluster(replace(STATUS, db_bytes=int(DEFAULT_QUOTA * 0.95))), "size", "fail"),
        (cluster(replace(STATUS, db_bytes=1 << 29, db_in_use_bytes=1 << 20)), "size", "warn"),
    ],
)
def test_a_flaw_of_the_cluster_is_found(condition: EtcdCondition, about: str, expected: Level) -> None:
    assert level(judge_etcd(condition), about) == expected


@pytest.mark.parametrize("name", ["NOSPACE", "CORRUPT"])
def test_an_alarm_fails_and_says_how_to_end_it(name: str) -> None:
    alarms = (RaisedAlarm(member_id=1, name=name), RaisedAlarm(member_id=2, name=name))
    (found,) = [f for f in judge_etcd(replace(cluster(STATUS), alarms=alarms)) if f.about == "alarms"]
    assert found.level == "fail"
    assert name in found.says
    assert found.todo


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.3.27", "fail"),
        ("3.4.23", "warn"),
        ("3.4.37", "warn"),
        ("3.5.0", "fail"),
        ("3.5.2", "fail"),
        ("3.5.3", "warn"),
        ("3.5.12", "warn"),
        ("3.5.13", "ok"),
        ("3.6.4", "ok"),
        ("4.0.0", "ok"),
        ("not provided", "warn"),
    ],
)
def test_a_version_is_judged_by_what_is_known_of_it(version: str, expected: Level) -> None:
    finding = judge_version(version)
    assert finding.level == expected
    assert version in finding.says


@pytest.mark.parametrize(
    ("url", "fields", "levels"),
    [
        ("etcd://127.0.0.1:2379,[::1]:2379,localhost:1", {}, ["ok"]),
        ("etcd://127.0.0.1:2379", {"ca": "ca.pem", "user": "u", "password": "secret"}, ["ok", "ok"]),
        ("etcd://127.0.0.1:2379", {"ca": "ca.pem"}, ["ok"]),
        ("etcd://127.0.0.1,10.0.0.1", {}, ["warn", "warn"]),
        ("etcd://etcd.example", {"ca": "ca.pem"}, ["ok", "warn"]),
        ("etcd://etcd.example", {"ca": "ca.pem", "cert": "c", "key": "k"}, ["ok", "ok"]),
        ("rediss://10.0.0.1:6379/1", {"user": "u", "password": "secret"}, ["ok", "ok"]),
        ("redis://[fd00::1]:6379", {"user": "u", "password": "secret"}, ["warn", "ok"]),
    ],
)
def test_who_else_can_reach_the_store_is_told(url: str, fields: dict[str, str], levels: list[Level]) -> None:
    findings = judge_access(StoreAccess(url=url, timeout_s=1, **fields))
    assert [finding.level for finding in findings] == levels
    assert "secret" not in repr(findings)


def test_hosts_are_told_apart() -> None:
    assert hosts("etcd://a:1,[::1]:2,10.0.0.1/") == ("a", "::1", "10.0.0.1")
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "0.0.0.0", "example")] == [
        *(True, True, True, False, False)
    ]


def view(records: dict[str, Record], *extra: tuple[str, bytes], revision: int = 50) -> Snapshot:
    entries = {SPACE.view + key: Stored(codec.encode(record), 7, 7) for key, record in records.items()}
    return Snapshot(revision, entries | {SPACE.view + key: Stored(value, 7, 7) for key, value in extra})


HEALTHY = Trial(view=view({}, ("store_id", b'"s1"')), put_s=0.002, event_s=0.003, history_whole=False)


def test_a_quick_store_that_compacts_is_all_right() -> None:
    findings = judge_trial(HEALTHY, SPACE)
    assert {finding.level for finding in findings} == {"ok"}
    assert any(finding.says == "s1" for finding in findings)


@pytest.mark.parametrize(
    ("trial", "about", "expected"),
    [
        (replace(HEALTHY, put_s=0.3), "put", "warn"),
        (replace(HEALTHY, event_s=2.0), "event", "warn"),
        (replace(HEALTHY, event_s=None, problem="no event within 5 s"), "use", "fail"),
        (replace(HEALTHY, history_whole=True), "compaction", "ok"),
        (replace(HEALTHY, history_whole=True, view=view({}, revision=200_000)), "compaction", "warn"),
        (replace(HEALTHY, view=view({}, ("routers/r0", b"garbage"))), "keys", "warn"),
    ],
)
def test_a_flaw_found_by_using_it(trial: Trial, about: str, expected: Level) -> None:
    assert level(judge_trial(trial, SPACE), about) == expected


def test_an_order_that_binds_nobody_is_named_and_no_other() -> None:
    records: dict[str, Record] = {
        **complete("here", instance_record()),
        keys.order("here"): order_record("drain"),
        keys.order("gone"): order_record("drain"),
        keys.order("comes-back"): order_record("drain", None, sticky=True),
    }
    trial = replace(HEALTHY, view=view(records))
    (found,) = [finding for finding in judge_trial(trial, SPACE) if finding.about == "orders"]
    assert found.todo == "`pdcore instance undrain gone`"


@pytest.mark.parametrize(
    ("fields", "about", "expected"),
    [
        ({}, "persistence", "ok"),
        ({"aof_enabled": "0"}, "persistence", "warn"),
        ({"aof_last_write_status": "err"}, "persistence", "fail"),
        ({"maxmemory_policy": "allkeys-lru"}, "memory", "fail"),
        ({"maxmemory": "100", "used_memory": "90"}, "memory", "warn"),
        ({"redis_version": "5.0.7"}, "version", "warn"),
        ({"redis_version": "what"}, "version", "warn"),
        ({"role": "slave"}, "role", "fail"),
        ({"cluster_enabled": "1"}, "role", "fail"),
    ],
)
def test_a_flaw_of_a_redis_is_found(fields: dict[str, str], about: str, expected: Level) -> None:
    condition = RedisCondition(fields={**REDIS, **fields})
    assert level(judge_redis(condition, keyspace=False), about) == expected


def test_a_redis_that_holds_the_fleet_says_what_it_does_not_promise() -> None:
    assert not [f for f in judge_redis(RedisCondition(fields=REDIS), keyspace=False) if f.level != "ok"]
    (warned,) = [f for f in judge_redis(RedisCondition(fields=REDIS), keyspace=True) if f.level != "ok"]
    assert "fail-over" in warned.says
    assert is_failed(judge_redis(RedisCondition(fields={}, problem="refused"), keyspace=True))
