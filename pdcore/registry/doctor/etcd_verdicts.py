"""What an etcd cluster's condition means for a keyspace that a fleet depends on. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pdcore.registry.doctor.finding import Finding, fail, ok, warn
from pdcore.registry.etcd.condition import EtcdCondition, MemberStatus

MEMBERS: Final = 3
DEFAULT_QUOTA: Final = 2 << 30
"""What etcd keeps to unless it was started with ``--quota-backend-bytes``; a member does not tell which."""
FILLING, NEARLY_FULL = 0.6, 0.9
FRAGMENTED_FROM: Final = 256 << 20
_LET_US_IN: Final = (
    "it runs: mend --store-ca, --store-cert and --store-key, or --store-user and PDCORE_STORE_PASSWORD"
)
_CURRENT: Final = "run the current patch of etcd 3.5 or 3.6"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_MIB: Final = 1 << 20


def judge_etcd(condition: EtcdCondition) -> tuple[Finding, ...]:
    """Every finding, in the order in which an operator should care."""
    statuses = tuple(answer.status for answer in condition.answers if answer.status is not None)
    steps = (_reachable(condition), _alarms(condition), _leader(statuses), _members(condition))
    findings = [finding for step in steps for finding in step]
    findings += (finding for step in (_versions, _sizes) for finding in step(statuses))
    return tuple(findings)


def _reachable(condition: EtcdCondition) -> Iterator[Finding]:
    silent = [answer for answer in condition.answers if answer.status is None]
    for answer in silent:
        says = f"{answer.address}: {answer.problem}"
        if len(silent) == len(condition.answers):
            away = "start it, or name another with --store / PDCORE_STORE"
            yield fail("reachable", says, _LET_US_IN if answer.refused else away)
        else:
            lost = "bring it back: the next member lost may cost the quorum"
            yield warn("reachable", says, _LET_US_IN if answer.refused else lost)
    if not silent:
        yield ok("reachable", f"{len(condition.answers)} of {len(condition.answers)} addresses answer")
    for problem in condition.problems if len(silent) < len(condition.answers) else ():
        yield warn("reachable", problem, "ask with an account that may read it, or look with etcdctl")


def _alarms(condition: EtcdCondition) -> Iterator[Finding]:
    for alarm in sorted({alarm.name for alarm in condition.alarms}):
        if alarm == "NOSPACE":
            says = "NOSPACE: every put is refused, so nobody can register; reads and deletes go on"
            yield fail("alarms", says, "compact, `etcdctl defrag` each member, `etcdctl alarm disarm`")
        else:
            yield fail("alarms", f"{alarm} is raised", "replace the member that raised it from a healthy one")
    if not condition.alarms and not any("alarms" in problem for problem in condition.problems):
        yield ok("alarms", "none is raised")


def _leader(statuses: tuple[MemberStatus, ...]) -> Iterator[Finding]:
    if not statuses:
        return
    leaders = {status.leader_id for status in statuses}
    if 0 in leaders:
        says = "a member knows no leader: it answers neither linearizable reads nor writes"
        yield fail("leader", says, "bring back a majority of the members")
    elif len(leaders) > 1:
        says = "members name different leaders: an election is going on, or the addresses are of two clusters"
        yield fail("leader", says, "ask again in a few seconds; if it stays, check --store")
    else:
        yield ok("leader", f"all agree on one, in term {max(status.raft_term for status in statuses)}")
    for status in statuses:
        for error in status.errors:
            yield warn("leader", f"member {status.member_id:x} says: {error}", "see etcd's own log")


def _members(condition: EtcdCondition) -> Iterator[Finding]:
    voting = [member for member in condition.members if not member.is_learner]
    count = len(voting)
    if not count:
        return
    if count < MEMBERS:
        says = f"{count} member{'s' if count > 1 else ''}: none may be lost"
        yield warn("members", says, f"run {MEMBERS}, each on a machine and a disk of its own")
    elif count % 2 == 0:
        says = f"{count} members stand no more losses than {count - 1}"
        yield warn("members", says, f"run {count - 1} or {count + 1}")
    else:
        yield ok("members", f"{count}, of which {(count - 1) // 2} may be lost")
    named = len(condition.answers)
    if named < count:
        says = f"--store names {named} of {count} members"
        yield warn("members", says, "name all of them, so that any one may be away")


def _versions(statuses: tuple[MemberStatus, ...]) -> Iterator[Finding]:
    versions = sorted({status.version for status in statuses})
    if len(versions) > 1:
        yield warn("version", f"members run {' and '.join(versions)}", "finish the upgrade")
    for version in versions:
        yield judge_version(version)


def judge_version(version: str) -> Finding:
    """What is known of one etcd version."""
    found = _VERSION.match(version)
    if found is None:
        return warn("version", f"{version!r} is no version known here", _CURRENT)
    major, minor, patch = (int(part) for part in found.groups())
    if (major, minor) < (3, 4):
        return fail("version", f"{version} lacks what the driver needs", _CURRENT)
    if (major, minor) == (3, 4):
        lossy = ", and before 3.4.31 a watch can lose events" if patch < 31 else ""
        says = f"{version}: 3.4 gets no fixes any more{lossy}"
        return warn("version", says, _CURRENT)
    if (major, minor) == (3, 5) and patch <= 2:
        return fail(
            "version", f"{version}: members can come to differ after a crash (3.5.0 to 3.5.2)", _CURRENT
        )
    if (major, minor) == (3, 5) and patch < 13:
        return warn("version", f"{version}: before 3.5.13 a watch can lose events", _CURRENT)
    return ok("version", f"{version}; keep to the newest patch of its line")


def _sizes(statuses: tuple[MemberStatus, ...]) -> Iterator[Finding]:
    if not statuses:
        return
    largest = max(statuses, key=lambda status: status.db_bytes)
    share = largest.db_bytes / DEFAULT_QUOTA
    says = f"{largest.db_bytes // _MIB} MiB, {share:.0%} of etcd's default quota of 2 GiB"
    todo = "compact and defragment, or raise --quota-backend-bytes (8 GiB at most)"
    if share >= NEARLY_FULL:
        yield fail("size", f"{says}: puts are refused when it is full", todo)
    elif share >= FILLING:
        yield warn("size", says, todo)
    else:
        yield ok("size", says)
    if largest.db_bytes >= FRAGMENTED_FROM and 2 * largest.db_in_use_bytes < largest.db_bytes:
        says = f"{largest.db_in_use_bytes // _MIB} of {largest.db_bytes // _MIB} MiB are in use"
        yield warn("size", says, "`etcdctl defrag` one member after the other")
