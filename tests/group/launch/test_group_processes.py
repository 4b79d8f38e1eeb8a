"""How members of a frozen generation are started here: what is rendered, and what only this machine adds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pdcore.config import StoreAccess
from pdcore.config.member_network import PortRange
from pdcore.errors import PdcoreError
from pdcore.group.control import changing
from pdcore.group.control.generation import frozen, wanted
from pdcore.group.control.members import Member
from pdcore.group.control.seen import Seen
from pdcore.group.control.slots import Slot, SlotWord
from pdcore.group.flags import Flags
from pdcore.group.launch.group_processes import Here, Processes
from pdcore.group.ports.holding import HeldPorts
from pdcore.group.spec import GroupSpec, spec_of
from pdcore.topology.topology import Topology

pytestmark = pytest.mark.unit

P1, D1, D2, R1 = (
    Member(1, "prefill", 1),
    Member(1, "decode", 1),
    Member(1, "decode", 2),
    Member(0, "router", 1),
)
ACCESS = StoreAccess(url="etcd://127.0.0.1:2379", timeout_s=1.0, user="me", password="hush")
RANGE = PortRange.parse("39200-39231")


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    with HeldPorts(RANGE) as held:
        yield held


def here(port: int = 0) -> Here:
    return Here(
        cluster="blue",
        access=ACCESS,
        port=port,
        torch_threads=3,
        drain_timeout_s=5.0,
        log_format="text",
        log_level="warning",
    )


def spec(**changes: Any) -> GroupSpec:
    document: Mapping[str, Any] = {
        "name": "chat",
        "model": "/models/tiny",
        "disaggregation": {"mode": "pdcore"},
        "env": {"OMP_NUM_THREADS": "2"},
        "roles": [
            {"name": "prefill"},
            {"name": "decode", "replicas": 2, "backend_parameters": ["--max-batch=8"]},
            {"name": "router", "backend_parameters": ["--max-attempts 2"]},
        ],
        **changes,
    }
    return spec_of(document)


def seen(of: GroupSpec) -> Seen:
    plan = changing.first_plan(wanted(of)).with_members(P1, D1, D2, R1)
    return Seen(
        group=of.name,
        plan=plan,
        revision=1,
        generations={1: frozen(of, 1, "1.0")},
        slots={},
        topology=Topology.empty(),
        now=0.0,
    )


def flags(argv: tuple[str, ...]) -> dict[str, str | None]:
    return {flag.name: flag.value for flag in Flags.of(argv).flags}


def test_a_native_engine_is_told_who_it_is_and_what_only_this_machine_knows(ports: HeldPorts) -> None:
    process = Processes(here(), ports).of(seen(spec()), D2)
    assert process.name == "chat-1-decode-2"
    assert process.argv[:3] == (sys.executable, "-m", "pdcore.engine")
    said = flags(process.argv)
    expected = {
        "role": "decode",
        "instance-id": "chat-1-decode-2",
        "group": "chat",
        "generation": "1",
        "model": "/models/tiny",
        "model-name": "tiny",
        "host": "127.0.0.1",
        "port": "0",
        "store": ACCESS.url,
        "store-user": "me",
        "cluster": "blue",
        "max-batch": "8",
        "torch-threads": "3",
        "drain-timeout-s": "5",
    }
    assert expected.items() <= said.items()
    assert process.secrets == {"OMP_NUM_THREADS": "2", "PDCORE_STORE_PASSWORD": "hush"}
    assert "hush" not in " ".join(process.argv)
    assert "hush" not in repr(process)


def test_what_the_spec_says_is_not_said_again(ports: HeldPorts) -> None:
    own = spec(backend_parameters=["--torch-threads=1", "--drain-timeout-s", "60"])
    argv = Processes(here(), ports).of(seen(own), P1).argv
    assert sum("torch-threads" in word for word in argv) == 1
    assert flags(argv)["drain-timeout-s"] == "60"


def test_a_router_listens_where_it_is_told_or_on_a_port_of_the_range(ports: HeldPorts) -> None:
    told = flags(Processes(here(18000), ports).of(seen(spec()), R1).argv)
    assert (told["port"], told["router-id"], told["max-attempts"]) == ("18000", "chat-router-1", "2")
    second = Member(0, "router", 2)
    assert flags(Processes(here(18000), ports).of(seen(spec()), second).argv)["port"] == "18001"
    free = flags(Processes(here(), ports).of(seen(spec()), R1).argv)["port"]
    assert int(free or 0) in RANGE.ports
    again = flags(Processes(here(), ports).of(seen(spec()), R1).argv)["port"]
    assert again == free, "a router that is started again is where it was"


def test_ports_that_do_not_fit_are_explained_and_come_back(ports: HeldPorts) -> None:
    with HeldPorts(PortRange.parse("39240-39240")) as one:
        processes = Processes(here(), one)
        with pytest.raises(PdcoreError, match="widen --service-port-range"):
            processes.of(seen(spec()), R1)
    processes = Processes(here(), ports)
    processes.of(seen(spec()), R1)
    assert ports.statistics().members == 1
    processes.give_back("chat", R1)
    assert ports.statistics().ports == 0


def custom(router: Mapping[str, object]) -> GroupSpec:
    return spec(
        disaggregation={"mode": "custom"},
        backend="custom",
        roles=[
            {"name": "prefill", "run_command": "serve --p --at {{port}}"},
            {
                "name": "decode",
                "replicas": 2,
                "run_command": "serve --d --at {{port}} --name '{{instance_id}}'",
            },
            {"name": "router", **router},
        ],
    )


def test_a_custom_groups_commands_are_started_as_they_are_written(ports: HeldPorts) -> None:
    own = custom({"run_command": "route --port {{port}} --to somewhere"})
    processes = Processes(here(), ports)
    engine = processes.of(seen(own), D1).argv
    assert engine[:3] == ("serve", "--d", "--at")
    assert int(engine[3]) in RANGE.ports
    assert engine[4:] == ("--name", "chat-1-decode-1")
    router = processes.of(seen(own), R1).argv
    assert (router[0], router[-1]) == ("route", "somewhere")


def test_our_router_before_custom_engines_is_told_where_they_are(ports: HeldPorts) -> None:
    own = seen(custom({"protocol": "nixl"}))
    urls = {P1: "http://127.0.0.1:7001", D1: "http://127.0.0.1:7002", D2: ""}
    held = {one: Slot(word=SlotWord(supervisor="a", url=url), mod_revision=1) for one, url in urls.items()}
    process = Processes(here(18000), ports).of(replace(own, slots=held), R1)
    told = [word for word in process.argv if word.startswith("http://127.0.0.1:")]
    assert sorted(told) == ["http://127.0.0.1:7001", "http://127.0.0.1:7002"], (
        "who does not answer is not told of"
    )
    assert flags(process.argv)["protocol"] == "nixl"
    assert "store-user" not in flags(process.argv)
    assert process.told_at == f"http://127.0.0.1:{flags(process.argv)['admin-port']}"
