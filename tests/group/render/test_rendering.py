"""Where each value comes from, what a person's words replace, and what cannot be started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdcore.config import ROUTER
from pdcore.config.targets import target
from pdcore.group.modes.catalogue import catalogue
from pdcore.group.modes.placeholders import Unresolved
from pdcore.group.render.engine import render_engine
from pdcore.group.render.facts import Place
from pdcore.group.render.router import membership_of, render_router
from tests.group.render.rendering import group_facts, member, peers, spec

pytestmark = pytest.mark.unit


def test_every_value_says_where_it_comes_from() -> None:
    made = member(
        spec(
            "vllm-nixl",
            backend_parameters=["--max-model-len=8192"],
            env={"A": "1"},
            decode={"backend_parameters": ["--seed", "1"], "env": {}},
        ),
        "prefill",
    )
    sources = {word.text: word.source for word in made.argv}
    assert sources["serve"] == "mode"
    assert sources["/models/qwen"] == "inherited"
    assert sources["10.0.0.7"] == "derived"
    assert sources["--kv-transfer-config"] == "mode"
    assert sources["--max-model-len=8192"] == "inherited"
    assert (made.env["A"].source, made.env["UCX_NET_DEVICES"].source) == ("inherited", "derived")
    assert {one.source for one in made.ports} == {"derived"}
    own = member(spec("vllm-nixl", decode={"backend_parameters": ["--seed 1"]}), "decode")
    assert [(word.text, word.source) for word in own.argv[-2:]] == [("--seed", "user"), ("1", "user")]


def test_a_users_variable_wins_and_is_noted() -> None:
    name = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
    made = member(spec("vllm-mooncake", decode={"env": {name: "300"}}), "decode")
    assert made.environment[name] == "300"
    assert made.env[name].source == "user"
    (note,) = made.notes
    assert (note.code, note.message) == ("env_overridden", f"{name}=300 of the spec replaces 60")


def test_a_command_replaces_what_comes_before_the_modes_words() -> None:
    command = "/opt/start --model {{model_path}} --listen '{{worker_ip}}:{{port}}' --name 'a b'"
    made = member(spec("sglang-nixl", prefill={"run_command": command}), "prefill")
    assert made.command[:7] == (
        "/opt/start",
        "--model",
        "/models/qwen",
        "--listen",
        "10.0.0.7:40000",
        "--name",
        "a b",
    )
    assert made.command[7] == "--disaggregation-mode"


def test_cards_alone_say_how_many_ranks_there_are() -> None:
    selector = {"gpu_selector": {"gpus_per_replica": 4}}
    made = member(spec("vllm-nixl", **selector), "prefill")
    place = made.command.index("--tensor-parallel-size")
    assert (made.command[place + 1], made.argv[place].source) == ("4", "derived")
    said = member(spec("vllm-nixl", prefill={**selector, "backend_parameters": ["-tp", "2"]}), "prefill")
    assert "--tensor-parallel-size" not in said.command


def test_the_other_roles_ranks_are_its_flags_its_cards_or_else_this_members_cards() -> None:
    def sizes(prefill: Any, decode: Any, accelerators: int | None) -> Any:
        made = member(
            spec("vllm-ascend-mooncake", prefill=prefill, decode=decode), "prefill", accelerators=accelerators
        )
        command = list(made.command)
        value = json.loads(command[command.index("--kv-transfer-config") + 1])
        extra = value["kv_connector_extra_config"]
        return tuple((extra[role]["tp_size"], extra[role]["dp_size"]) for role in ("prefill", "decode"))

    flags = {"backend_parameters": ["--tp-size", "8", "--dp", "2"]}
    cards = {"gpu_selector": {"gpus_per_replica": 4}}
    assert sizes(flags, cards, None) == ((8, 2), (4, 1))
    assert sizes(cards, {}, 4) == ((4, 1), (4, 1))
    assert sizes({}, cards, 16) == ((16, 1), (4, 1))


def test_ranks_that_nobody_declared_stop_the_launch() -> None:
    spanning = {"gpu_selector": {"gpu_ids": ["m1:npu:0", "m2:npu:0"]}}
    made = member(spec("vllm-ascend-mooncake", prefill={}, decode=spanning), "prefill", accelerators=8)
    with pytest.raises(Unresolved) as refused:
        _ = made.command
    problems = refused.value.problems
    assert any(
        "{{roles.decode.tp_size}}" in one and "never declared its parallelism" in one for one in problems
    )
    assert not any("{{roles.prefill" in one for one in problems)


@pytest.mark.parametrize(
    ("mode", "place", "named", "cause"),
    [
        (
            "vllm-nixl",
            {"bands": {}},
            "env VLLM_NIXL_SIDE_CHANNEL_PORT: {{ports.kv_side_channel}}",
            "no port band",
        ),
        ("sglang-nixl", {"net_device": None}, "env UCX_NET_DEVICES: {{net_device}}", "--kv-transfer-ifname"),
        ("vllm-nixl", {"port": None}, "args: {{port}}", "no port was assigned"),
    ],
)
def test_what_is_not_known_is_named_with_its_cause(mode: str, place: Any, named: str, cause: str) -> None:
    made = member(spec(mode), "prefill", **place)
    assert "{{" in " ".join((*(word.text for word in made.argv), *made.environment.values()))
    (problem,) = [one for one in made.problems if named in str(one)]
    assert cause in str(problem)
    with pytest.raises(Unresolved, match="prefill: "):
        _ = made.command


def test_a_users_placeholder_that_nobody_knows_stops_the_launch() -> None:
    made = member(spec("vllm-nixl", prefill={"env": {"X": "{{prot}}"}}), "prefill")
    assert [str(one) for one in made.problems] == [
        "env X: {{prot}} is not resolved: there is no such placeholder"
    ]


def test_custom_adds_nothing() -> None:
    made = spec(
        "custom",
        prefill={"backend": "custom", "run_command": "serve --port {{port}}", "backend_parameters": ["--x"]},
        decode={"backend": "vllm", "env": {"A": "{{worker_ip}}"}},
        router={"protocol": "nixl"},
    )
    prefill, decode = member(made, "prefill"), member(made, "decode")
    assert prefill.command == ("serve", "--port", "40000", "--x")
    assert prefill.environment == {}
    assert [(one.name, one.count) for one in prefill.ports] == [("http", 1)]
    assert "--kv-transfer-config" not in decode.command
    assert decode.environment == {"A": "10.0.0.7"}


def test_customs_router_is_ours_with_a_protocol_or_the_specs_command() -> None:
    mode = catalogue().mode("custom")
    ours = spec("custom", router={"protocol": "ascend-layerwise"})
    command = member(ours, "router", peers=peers()).command
    assert command[command.index("--protocol") + 1] == "ascend-layerwise"
    assert membership_of(mode, group_facts(ours).roles["router"]) == "dynamic"
    theirs = spec("custom", router={"run_command": "lb --at {{worker_ip}}:{{port}}"})
    made = member(theirs, "router")
    assert made.command == ("lb", "--at", "10.0.0.7:40000")
    assert [note.code for note in made.notes] == ["router_is_users"]
    assert membership_of(mode, group_facts(theirs).roles["router"]) == "manual"
    assert [one.name for one in made.ports] == ["http"]


def test_a_role_without_a_command_cannot_be_started() -> None:
    made = member(spec("custom", prefill={"backend": "custom"}), "prefill")
    assert [str(one) for one in made.problems] == ["it has no command: write run_command"]


def test_a_command_makes_any_modes_router_manual() -> None:
    made = spec("vllm-nixl", router={"run_command": "lb"})
    router = group_facts(made).roles["router"]
    assert membership_of(catalogue().mode("vllm-nixl"), router) == "manual"
    assert (
        membership_of(catalogue().mode("pdcore"), group_facts(spec("pdcore")).roles["router"]) == "keyspace"
    )


def test_a_static_router_needs_a_peer_of_each_role() -> None:
    only_prefill = tuple(one for one in peers() if one.role == "prefill")
    made = member(spec("vllm-nixl"), "router", peers=only_prefill)
    assert [str(one) for one in made.problems] == ["peers: there is no decode member to tell it of"]
    assert member(spec("pdcore"), "router").problems == ()


def test_a_routers_own_flags_come_last() -> None:
    made = spec(
        "vllm-nixl", backend_parameters=["--seed=1"], router={"backend_parameters": ["--max-attempts=5"]}
    )
    command = member(made, "router", peers=peers()).command
    assert command[-1] == "--max-attempts=5"
    assert "--seed=1" not in command


def test_an_ipv6_peer_stands_in_brackets() -> None:
    made = member(spec("vllm-nixl"), "router", peers=tuple(replace(one, ip="fd00::1") for one in peers()))
    assert "http://[fd00::1]:40000" in made.command


@pytest.mark.parametrize("name", sorted(catalogue().routers))
def test_every_flag_that_a_router_is_given_or_offered_is_one_of_ours(name: str) -> None:
    router = catalogue().routers[name]
    given = {
        word for words in (router.connection_args, router.args, *router.peers.values()) for word in words
    }
    flags = {word for word in given if word.startswith("--")}
    flags |= {*router.owned_args, *(one.flag for one in router.tunable_args)}
    ours = {flag: setting for setting in ROUTER for flag in setting.flags}
    assert flags <= ours.keys()
    for one in router.tunable_args:
        for choice in one.choices:
            ours[one.flag].parse(choice)


def test_what_a_router_is_told_of_engines_is_what_ours_reads() -> None:
    made = member(spec("vllm-mooncake"), "router", peers=peers({"bootstrap": 40001}))
    told = [made.command[place + 1] for place, word in enumerate(made.command) if word == "--prefill"]
    assert [target("prefill", word).bootstrap_port for word in told] == [40001, 40001]


def test_speculative_decoding_is_said_in_the_engines_words() -> None:
    config = {"method": "eagle", "num_speculative_tokens": 3}
    vllm = member(spec("vllm-nixl", speculative_config=config), "decode").command
    assert vllm[-2:] == ("--speculative-config", '{"method":"eagle","num_speculative_tokens":3}')
    sglang = member(
        spec("sglang-nixl", speculative_config={"speculative_algorithm": "EAGLE"}), "decode"
    ).command
    assert sglang[-2:] == ("--speculative-algorithm", "EAGLE")
    native = member(spec("pdcore", speculative_config=config), "decode")
    assert [note.code for note in native.notes] == ["not_passed_on"]


def test_before_anything_is_assigned_everything_is_shown_and_nothing_started() -> None:
    made = spec("vllm-nixl")
    facts, mode = group_facts(made), catalogue().mode("vllm-nixl")
    shown = render_engine(catalogue(), mode, facts, facts.roles["prefill"], Place())
    document = json.loads(json.dumps(shown.document()))
    assert {"value": "{{port}}", "source": "derived"} in document["argv"]
    assert document["ports"] == [
        {"name": "http", "base": None, "count": 1, "source": "derived"},
        {"name": "kv_side_channel", "base": None, "count": 1, "source": "derived"},
    ]
    assert document["problems"]
    router = render_router(catalogue(), mode, facts, facts.roles["router"], Place())
    assert "{{ports.admin}}" in {word.text for word in router.argv}


def test_the_data_files_are_installed_beside_the_code() -> None:
    root = Path(__file__).parents[3] / "pdcore/group/modes"
    assert {one.name for one in root.glob("*.yaml")} == {"catalogue.yaml", "shared_caches.yaml"}
