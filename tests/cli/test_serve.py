"""The command line of cann-recipes-infer: both spellings, lists of words, what follows from it, and each refusal."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdcore.cli import main
from pdcore.cli.recipe_flags import RECIPE_FLAGS, gathered
from pdcore.cli.serve import router_flags, serve, settings_of
from pdcore.config import ROUTER, EngineConfig, RouterConfig, load
from pdcore.engine.settings import read_settings
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit

DOCUMENTED = (
    "--role {role} --yaml_file_path={role}.yaml --master_node={master} --node-index={index}"
    " --devices-per-node=16 --bootstrap-host={host} --ips p0 p1 p2 p3 d0 d1"
)
"""The command that the design document shows, in section 7.4."""
SCRIPT = (
    "--role {role} --yaml-file-path {role}.yaml --node-index {index} --devices-per-node 16"
    " --ips {own} --prefill-ips p0 p1 p2 p3 --decode-ips d0 d1"
)
"""What its start scripts pass."""


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for role, world in (("prefill", 32), ("decode", 16)):
        (tmp_path / f"{role}.yaml").write_text(
            f"model_config: {{model_path: m}}\nparallel_config: {{world_size: {world}, attn_tp_size: 4}}\n"
        )


def read(line: str) -> EngineConfig:
    """The settings with which ``pdcore serve LINE`` starts."""
    context = serve.make_context("serve", shlex.split(line))
    flags, defaults = settings_of(context.params)
    return read_settings(flags, defaults=defaults)


def refused(line: str) -> str:
    """What it prints instead, with exit status 2."""
    result = CliRunner().invoke(main, ["serve", *shlex.split(line)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return result.output.strip()


@pytest.mark.parametrize("command", [DOCUMENTED, SCRIPT, SCRIPT.replace("-", "_").replace("__", "--")])
@pytest.mark.parametrize(
    ("role", "index", "ip", "leader", "node_rank"),
    [
        ("prefill", 0, "p0", "p0", 0),
        ("prefill", 1, "p1", "p0", 1),
        ("prefill", 2, "p2", "p2", 0),
        ("prefill", 3, "p3", "p2", 1),
        ("decode", 0, "d0", "d0", 0),
        ("decode", 1, "d1", "d1", 0),
    ],
)
def test_the_documented_example_as_it_is_written(
    command: str, role: str, index: int, ip: str, leader: str, node_rank: int
) -> None:
    own, port = {"prefill": ("p0 p1 p2 p3", 8001), "decode": ("d0 d1", 8100)}[role]
    config = read(command.format(role=role, index=index, own=own, master=own[:2], host=ip))
    assert (config.host, config.node_rank, config.nnodes) == (ip, node_rank, 2 if role == "prefill" else 1)
    assert config.instance_id == f"{role}-{leader}-{port}"
    assert config.leader == (f"{leader}:{port}" if node_rank else None)
    assert (config.tp, config.dp, config.devices_per_node) == (4, 8 if role == "prefill" else 4, 16)


def test_every_flag_of_theirs_has_both_spellings() -> None:
    for one in RECIPE_FLAGS:
        for spelling in (one.flag, f"--{one.name}"):
            assert serve.make_context("serve", [spelling, "x"]).params[one.name].strip() == "x"


@pytest.mark.parametrize(
    ("words", "gathers"),
    [
        ("--ips a b --role x", ["--ips= a b", "--role", "x"]),
        ("--ips=a b c", ["--ips=a b c"]),
        ("--prefill_ips a --ips b c", ["--prefill_ips= a", "--ips= b c"]),
        ("--role x y", ["--role", "x", "y"]),
        ("--yaml_file_path=a_b.yaml", ["--yaml_file_path=a_b.yaml"]),
        ("--ips --role x", ["--ips=", "--role", "x"]),
    ],
)
def test_a_list_takes_every_word_up_to_the_next_flag(words: str, gathers: list[str]) -> None:
    assert gathered(words.split()) == gathers


def test_our_own_settings_may_be_given_beside() -> None:
    line = "--role decode --yaml-file-path decode.yaml --ips 10.0.0.1 --devices-per-node 16"
    config = read(f"{line} --store etcd://h:1 --cluster c --port 9000 --kv-tokens 64 --bootstrap-port 18801")
    assert (config.store, config.cluster, config.kv_tokens) == ("etcd://h:1", "c", 64)
    assert config.instance_id == "decode-10.0.0.1-9000"
    assert config.bootstrap_port == 18801


def test_what_follows_gives_way_to_what_somebody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCORE_INSTANCE_ID", "mine")
    monkeypatch.setenv("PDCORE_LEADER", "10.0.0.7:1")
    config = read(DOCUMENTED.format(role="prefill", index=1, master="p0", host="p1"))
    assert (config.instance_id, config.leader) == ("mine", "10.0.0.7:1")


def test_an_ipv6_leader_is_asked_in_brackets() -> None:
    line = "--role prefill --yaml-file-path prefill.yaml --node-index 1 --devices-per-node 16"
    assert read(f"{line} --ips fd00::1 fd00::2").leader == "[fd00::1]:8001"


def test_without_lists_it_is_one_machine_on_loopback_or_where_it_is_told() -> None:
    line = "--role decode --yaml-file-path decode.yaml --node-index 0"
    assert read(line).host == "127.0.0.1"
    assert read(f"{line} --bootstrap-host 10.0.0.4").host == "10.0.0.4"


@pytest.mark.parametrize("name", ["mooncake", "memfabric"])
def test_their_engines_are_ours_too(name: str) -> None:
    line = f"--role decode --yaml-file-path decode.yaml --engine-backend {name}"
    assert read(line).transfer_engine == name


LISTED = "--role decode --yaml-file-path decode.yaml --ips d0 d1"
REFUSALS = [
    (
        "--role router --prefill-addrs p0 --decode-addrs d0 --ips p0 d0",
        "--ips: is not for --role router",
    ),
    ("--role router --prefill-addrs p0 --kv-tokens 7", "--kv-tokens: is not for --role router"),
    ("--role router --prefill-addrs p0/x", "serve: --prefill-addrs: 'p0/x' must be HOST[:PORT]"),
    ("--role router --prefill_addrs p0/x", "serve: --prefill_addrs: 'p0/x' must be HOST[:PORT]"),
    ("--role decode --yaml_file_path nowhere.yaml", "serve: --yaml_file_path: cannot read nowhere.yaml"),
    ("--role decode --config nowhere.yaml", "serve: --config / PDCORE_CONFIG: cannot read nowhere.yaml"),
    ("--role decode --config decode.yaml --engine_backend x", "serve: --engine_backend: 'x' must be one of"),
    ("--role decode --config decode.yaml --kv_tokens 7", "serve: --kv_tokens: '7' must be a whole number"),
    (f"{LISTED} --prefill-addrs p0", "--prefill-addrs: is for --role router"),
    (
        f"{LISTED} --node-index 0",
        "--devices-per-node is missing: with it the lists say where an instance ends",
    ),
    (
        f"{LISTED} --node-index x --devices-per-node 16",
        "--node-index: 'x' must be a whole number from 0 to 1023",
    ),
    (f"{LISTED} --node-index 2 --devices-per-node 16", "--node-index: 2 is not within the 2 machines"),
    (
        f"{LISTED} --node-index 0 --devices-per-node 16 --advertise-ip d9",
        "--advertise-ip: d9 contradicts d0, which follows from the lists",
    ),
    (
        f"{LISTED} --node-index 0 --devices-per-node 16 --nnodes 2",
        "--nnodes: 2 contradicts 1, which follows from the lists",
    ),
    (
        f"{LISTED} --node-index 0 --devices-per-node 16 --config x.yaml",
        "--yaml-file-path: decode.yaml contradicts --config x.yaml",
    ),
    (
        "--role decode --yaml-file-path decode.yaml --node-index 1",
        "--node-index and --master-node need the machines",
    ),
    (
        "--role prefill --yaml-file-path prefill.yaml --ips p0 p1 --devices-per-node 16 --node-index 0 --port 0",
        "--port / PDCORE_PORT: 0 on several machines needs an --instance-id",
    ),
    ("--role decode --yaml-file-path nowhere.yaml", "cannot read nowhere.yaml"),
    ("--role decode --yaml_fle_path decode.yaml", "'--yaml-fle-path'"),
    (
        "--role decoder --yaml-file-path decode.yaml",
        "--role / PDCORE_ROLE: 'decoder' must be one of prefill, decode, unified",
    ),
]


@pytest.mark.parametrize(("line", "says"), REFUSALS, ids=[row[1][:40] for row in REFUSALS])
def test_what_cannot_work_is_a_sentence_and_exit_status_2(line: str, says: str) -> None:
    assert says in refused(line)


def test_a_router_takes_the_leaders_addresses_and_its_own_settings() -> None:
    line = "--role router --prefill-addrs p0 p2 --decode_addrs=d0 d1 --port 9000 --cluster c"
    flags = router_flags(serve.make_context("serve", shlex.split(line)).params)
    made = load(RouterConfig, ROUTER, flags, section="router", environ={})
    assert [one.url for one in made.targets] == [
        "http://p0:8001",
        "http://p2:8001",
        "http://d0:8100",
        "http://d1:8100",
    ]
    assert (made.port, made.cluster) == (9000, "c")


def test_help_shows_two_examples() -> None:
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    assert text.count("pdcore serve --role prefill") == 2
    assert "A flag wins over its variable" in " ".join(text.split())


def test_an_address_that_is_not_the_one_of_the_lists_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--host / PDCORE_HOST: 10\.0\.0\.9 is not d0"):
        read(f"{LISTED} --node-index 0 --devices-per-node 16 --host 10.0.0.9")
