from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pdcore.config import StoreAccess
from pdcore.errors import ConfigError
from pdcore.group.launch import embedded_etcd
from pdcore.group.launch.log import PrefixedLog
from pdcore.group.launch.members import ClusterPlan, engines, router
from pdcore.group.launch.up import threads_each
from tests.support.processes import free_port

pytestmark = pytest.mark.unit

STORE = StoreAccess(url="etcd://127.0.0.1:4001", timeout_s=3)
PLAN = ClusterPlan(
    cluster="c",
    model=Path("/models/m"),
    model_name=None,
    replicas=(("prefill", 2), ("decode", 1), ("unified", 0)),
    port=8000,
    torch_threads=1,
    drain_timeout_s=5.0,
    log_format="text",
    log_level="info",
)


def flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(f"--{name}") + 1]


def test_instances_are_named_by_role_and_number() -> None:
    assert [member.name for member in engines(PLAN, STORE)] == ["prefill-1", "prefill-2", "decode-1"]
    assert PLAN.instance_ids == ("prefill-1", "prefill-2", "decode-1")


def test_an_engine_picks_its_ports_and_knows_store_cluster_and_model() -> None:
    argv = engines(PLAN, STORE)[1].argv
    assert argv[:3] == (sys.executable, "-m", "pdcore.engine")
    given = {name: flag(argv, name) for name in ("role", "instance-id", "store", "cluster", "model", "port")}
    assert given == {
        "role": "prefill",
        "instance-id": "prefill-2",
        "store": STORE.url,
        "cluster": "c",
        "model": "/models/m",
        "port": "0",
    }
    assert flag(argv, "bootstrap-port") == "0"
    assert "--model-name" not in argv


def test_a_model_name_reaches_every_engine() -> None:
    named = replace(PLAN, model_name="llama")
    assert {flag(member.argv, "model-name") for member in engines(named, STORE)} == {"llama"}


def test_the_router_listens_where_it_was_told() -> None:
    argv = router(PLAN, STORE).argv
    assert argv[:3] == (sys.executable, "-m", "pdcore.router")
    assert (flag(argv, "port"), flag(argv, "host")) == ("8000", "127.0.0.1")


@pytest.mark.parametrize(("cores", "instances", "each"), [(2, 2, 1), (16, 3, 5), (2, 8, 1)])
def test_instances_share_the_cores(cores: int, instances: int, each: int) -> None:
    assert threads_each(cores, instances) == each
    assert flag(engines(PLAN, STORE)[0].argv, "torch-threads") == str(PLAN.torch_threads)


def test_every_flag_given_to_a_member_is_one_of_its_settings() -> None:
    from pdcore.config import ENGINE, ROUTER

    for member, settings in [(engines(PLAN, STORE)[0], ENGINE), (router(PLAN, STORE), ROUTER)]:
        known = {setting.flag for setting in settings}
        assert {part for part in member.argv if re.match(r"--\w", part)} <= known


def test_a_missing_etcd_is_one_sentence_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="etcd-server") as wrong, embedded_etcd.prepared(0, None):
        pass
    assert len(wrong.value.problems) == 1


def test_an_etcd_keeps_to_loopback_and_its_directory_goes_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with embedded_etcd.prepared(0, None) as etcd:
        argv = etcd.member().argv
        assert all(part.startswith("http://127.0.0.1:") for part in argv if part.startswith("http"))
        assert flag(argv, "auto-compaction-mode") == "periodic"
        assert flag(argv, "auto-compaction-retention") == "1h"
        assert flag(argv, "quota-backend-bytes") == str(2 * 1024**3)
        assert etcd.data_dir.is_dir()
    assert not etcd.data_dir.exists()


def test_a_given_directory_is_made_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    port = free_port()
    with embedded_etcd.prepared(port, tmp_path / "a" / "b") as etcd:
        assert etcd.store == f"etcd://127.0.0.1:{port}"
    assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_that_cannot_be_made_names_its_flag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--data-dir"), embedded_etcd.prepared(0, tmp_path / "etcd"):
        pass


class _Screen:
    def __init__(self, *, terminal: bool) -> None:
        self.text = ""
        self.terminal = terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self.terminal


def test_the_log_aligns_names_and_remembers_the_last_words() -> None:
    screen = _Screen(terminal=False)
    log = PrefixedLog(screen, ("etcd", "prefill-1"))  # type: ignore[arg-type]
    log.line("prefill-1", "hello")
    log.line("prefill-1", "")
    log.say("ready")
    assert screen.text == "prefill-1 | hello\nprefill-1 | \npdcore    | ready\n"
    assert log.last("prefill-1") == "hello"
    assert log.last("etcd") is None


def test_colours_are_for_terminals_only() -> None:
    screen = _Screen(terminal=True)
    PrefixedLog(screen, ("etcd",)).say("ready")  # type: ignore[arg-type]
    assert "\033[" in screen.text
    assert "ready" in screen.text


def test_a_login_reaches_every_member_and_its_password_no_command_line() -> None:
    access = replace(STORE, user="u", password="hunter2", ca="/tls/ca", cert="/tls/cert", key="/tls/key")
    for member in (*engines(PLAN, access), router(PLAN, access)):
        given = {name: flag(member.argv, f"store-{name}") for name in ("user", "ca", "cert", "key")}
        assert given == {"user": "u", "ca": "/tls/ca", "cert": "/tls/cert", "key": "/tls/key"}
        assert member.secrets == {"PDCORE_STORE_PASSWORD": "hunter2"}
        assert "hunter2" not in f"{member!r} {member.argv} {access!r}"
    assert router(PLAN, STORE).secrets == {}


def test_the_redis_beside_the_store_reaches_every_member() -> None:
    redis = StoreAccess(url="redis://127.0.0.1:4002", timeout_s=3, user="r", password="hunter2", ca="/tls/ca")
    plan = replace(PLAN, redis=redis)
    for member in (*engines(plan, STORE), router(plan, STORE)):
        assert flag(member.argv, "redis") == redis.url
        assert (flag(member.argv, "redis-user"), flag(member.argv, "redis-ca")) == ("r", "/tls/ca")
        assert member.secrets == {"PDCORE_REDIS_PASSWORD": "hunter2"}
        assert "hunter2" not in f"{member!r} {member.argv}"
    assert "--redis" not in router(PLAN, STORE).argv
