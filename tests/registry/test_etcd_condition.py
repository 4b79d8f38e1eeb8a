"""What ``pdcore doctor store`` learns from an etcd cluster."""

from __future__ import annotations

import pytest

from pdcore.config import StoreAccess
from pdcore.registry.etcd.condition import RaisedAlarm, read_condition
from tests.support.etcd_server import EtcdServer, etcd_server
from tests.support.processes import free_port

pytestmark = pytest.mark.integration


async def test_every_named_address_tells_its_status_or_why_not(shared_etcd: EtcdServer) -> None:
    dead = f"127.0.0.1:{free_port()}"
    access = StoreAccess(url=f"{shared_etcd.url},{dead}", timeout_s=3)
    condition = await read_condition(access)
    alive, gone = condition.answers
    assert alive.address == shared_etcd.endpoint
    assert alive.problem is None
    assert alive.status is not None
    assert alive.status.version.startswith("3.")
    assert 0 < alive.status.db_in_use_bytes <= alive.status.db_bytes
    assert alive.status.leader_id == alive.status.member_id != 0
    assert alive.status.raft_term > 0
    assert (alive.status.errors, alive.status.is_learner) == ((), False)
    assert (gone.address, gone.status) == (dead, None)
    assert gone.problem is not None
    assert gone.problem.startswith(f"etcd at {dead}: ")
    (member,) = condition.members
    assert (member.member_id, member.name) == (alive.status.member_id, "member")
    assert member.client_urls == (f"http://{shared_etcd.endpoint}",)
    assert (condition.alarms, condition.problems) == ((), ())


async def test_a_full_store_shows_its_alarm() -> None:
    with etcd_server(extra=("--quota-backend-bytes", "32768")) as server:
        server.fill()
        condition = await read_condition(StoreAccess(url=server.url, timeout_s=3))
        (answer,) = condition.answers
        assert answer.status is not None
        assert condition.alarms == (RaisedAlarm(member_id=answer.status.member_id, name="NOSPACE"),)
        assert answer.status.errors


async def test_nothing_reachable_is_an_answer_too() -> None:
    condition = await read_condition(StoreAccess(url=f"etcd://127.0.0.1:{free_port()}", timeout_s=1))
    assert [answer.status for answer in condition.answers] == [None]
    assert (condition.members, condition.alarms, len(condition.problems)) == ((), (), 2)
