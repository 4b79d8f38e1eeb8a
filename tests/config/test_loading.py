from __future__ import annotations

from pathlib import Path

import pytest

from pdcore import config
from pdcore.config import COMMON, ENGINE, ROUTER, CommonConfig, EngineConfig, RouterConfig
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit


def router(flags: dict[str, str | None] | None = None, environ: dict[str, str] | None = None) -> RouterConfig:
    return config.load(RouterConfig, ROUTER, flags or {}, section="router", environ=environ or {})


def problems(flags: dict[str, str | None], environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as wrong:
        config.load(EngineConfig, ENGINE, flags, section="engine", environ=environ or {})
    return wrong.value.problems


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_given_means_the_documented_defaults() -> None:
    made = router()
    assert (made.store, made.cluster, made.host, made.port) == (
        "etcd://127.0.0.1:2379",
        "default",
        "127.0.0.1",
        8000,
    )


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "pdcore.toml").write_text('cluster = "file"\n[router]\nport = 1\n')
    assert router().cluster == "file"
    assert router().port == 1
    assert router(environ={"PDCORE_CLUSTER": "env"}).cluster == "env"
    assert router({"cluster": "flag"}, {"PDCORE_CLUSTER": "env"}).cluster == "flag"


def test_everything_missing_or_wrong_is_reported_together_with_flag_and_variable() -> None:
    found = problems({"port": "70000", "dtype": "int3"})
    assert any(p.startswith("--role / PDCORE_ROLE is missing") for p in found)
    assert any(p.startswith("--model / PDCORE_MODEL is missing") for p in found)
    assert any(p.startswith("--port / PDCORE_PORT: '70000' must be") for p in found)
    assert any(p.startswith("--dtype / PDCORE_DTYPE: 'int3' must be one of") for p in found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('clusterr = "x"\n', "unknown key 'clusterr'"),
        ("[enigne]\nport = 1\n", "unknown table [enigne]"),
        ("[engine]\nprot = 1\n", "unknown key 'prot' in [engine]; did you mean 'port'?"),
        ("[engine]\nkv-tokens = 1\n", "did you mean 'kv_tokens'?"),
        ("cluster = [\n", "cannot read"),
    ],
)
def test_a_typo_in_the_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    found = problems({"config": str(file), "role": "prefill", "model": "m"})
    assert [p for p in found if complaint in p and str(file) in p]


def test_a_named_file_that_is_missing_is_an_error() -> None:
    assert problems({"config": "/nowhere.toml", "role": "decode", "model": "m"})


@pytest.mark.parametrize("value", ["", "a b", "a/b", "..", "ü", "x" * 129])
def test_a_name_that_cannot_be_a_key_segment_is_refused(value: str) -> None:
    assert any("--cluster" in p for p in problems({"cluster": value, "role": "decode", "model": "m"}))


def test_the_demo_model_lies_in_the_users_cache() -> None:
    assert config.demo_model_directory({"PDCORE_CACHE": "/c"}) == Path("/c/models/SmolLM2-135M-Instruct")
    assert config.cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/pdcore")


def test_what_holds_for_every_process_holds_for_commands_which_have_no_table(tmp_path: Path) -> None:
    (tmp_path / "pdcore.toml").write_text('cluster = "file"\nport = 1\n[router]\ncluster = "other"\n')
    flags: dict[str, str | None] = {"config": str(tmp_path / "pdcore.toml")}
    read = config.load(CommonConfig, COMMON, flags, section="topology", environ={})
    assert read.cluster == "file"
