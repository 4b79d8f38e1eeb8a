"""Which kind of file ``--config`` names, and which of the four sources counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdcore import config
from pdcore.config import ENGINE, ROUTER, EngineConfig, RouterConfig
from pdcore.errors import ConfigError

pytestmark = pytest.mark.unit

PREFILL = (
    "parallel_config: {world_size: 4, attn_tp_size: 2}\nmodel_config: {model_path: m, exe_mode: eager}\n"
)
DECODE = "parallel_config: {world_size: 2}\nmodel_config: {model_path: m}\n"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pair = tmp_path / "model_pd"
    pair.mkdir()
    (pair / "prefill.yaml").write_text(PREFILL)
    (pair / "decode.yaml").write_text(DECODE)
    return pair


def load(
    file: Path | str, role: str = "prefill", environ: dict[str, str] | None = None, **flags: str
) -> EngineConfig:
    return config.load(
        EngineConfig,
        ENGINE,
        {"config": str(file), "role": role, **flags},
        section="engine",
        environ=environ or {},
    )


def problem(file: Path | str, role: str = "prefill") -> str:
    with pytest.raises(ConfigError) as wrong:
        load(file, role, model="m")
    (only,) = wrong.value.problems
    return only


def test_the_role_picks_the_file_of_a_directory(directory: Path) -> None:
    prefill, decode = load(directory), load(directory, "decode")
    assert (prefill.dp, prefill.tp) == (2, 2)
    assert (decode.dp, decode.tp) == (2, 1)


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_one_file_of_a_recipe_is_known_by_its_ending(directory: Path, suffix: str) -> None:
    file = directory / f"mine{suffix}"
    file.write_text(PREFILL)
    assert load(file, "unified").tp == 2


def test_everything_else_is_toml(directory: Path) -> None:
    file = directory / "engine.conf"
    file.write_text('[engine]\ntp = 8\nmodel = "m"\n')
    assert load(file).tp == 8


def test_a_flag_wins_over_its_variable_that_over_the_file_that_over_the_default(directory: Path) -> None:
    file = directory / "prefill.yaml"
    assert load(directory).block_size == 16
    file.write_text(PREFILL + "scheduler_config: {block_size: 32}\n")
    (directory / "decode.yaml").unlink()
    assert load(directory).block_size == 32
    assert load(directory, environ={"PDCORE_BLOCK_SIZE": "64"}).block_size == 64
    assert load(directory, environ={"PDCORE_BLOCK_SIZE": "64"}, block_size="128").block_size == 128


def test_role_and_file_may_come_from_the_environment(directory: Path) -> None:
    environ = {"PDCORE_ROLE": "decode", "PDCORE_CONFIG": str(directory)}
    assert config.load(EngineConfig, ENGINE, {}, section="engine", environ=environ).dp == 2


def test_keys_that_nothing_uses_are_handed_out(directory: Path) -> None:
    ignored: list[str] = []
    flags = {"config": str(directory), "role": "prefill"}
    config.load(EngineConfig, ENGINE, flags, section="engine", environ={}, ignored=ignored)
    assert ignored == ["model_config.exe_mode"]


def test_the_other_roles_file_is_checked_too(directory: Path) -> None:
    (directory / "decode.yaml").write_text("modle_config: {}\n")
    assert problem(directory) == (
        f"{directory}/decode.yaml: unknown key 'modle_config'; did you mean 'model_config'?"
    )
    (directory / "decode.yaml").write_text("scheduler_config: {block_size: 32}\n")
    assert problem(directory) == (
        f"{directory}: scheduler_config.block_size is 16 in prefill.yaml and 32 in decode.yaml;"
        " a pair must agree on it"
    )


def test_a_machine_may_have_its_own_roles_file_only(directory: Path) -> None:
    (directory / "decode.yaml").unlink()
    assert load(directory).tp == 2
    assert "cannot read" in problem(directory, "decode")


def test_unified_must_name_one_of_the_two(directory: Path) -> None:
    assert problem(directory, "unified") == (
        f"--config / PDCORE_CONFIG: {directory} has a file for prefill and for decode, none for unified"
    )


def test_without_a_role_only_that_is_said(directory: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        config.load(
            EngineConfig, ENGINE, {"config": str(directory), "model": "m"}, section="engine", environ={}
        )
    assert [p.partition(" is missing")[0] for p in wrong.value.problems] == ["--role / PDCORE_ROLE"]


def test_a_router_takes_no_engine_configuration(directory: Path) -> None:
    with pytest.raises(ConfigError, match="is for engines; router takes TOML"):
        config.load(RouterConfig, ROUTER, {"config": str(directory)}, section="router", environ={})


@pytest.mark.parametrize(("environ", "threads"), [({}, 4), ({"ASCEND_TRANSFER_THREADS": "7"}, 7)])
def test_a_variable_that_people_know_from_elsewhere_counts_after_ours(
    directory: Path, environ: dict[str, str], threads: int
) -> None:
    assert load(directory, environ=environ).transfer_threads == threads
    assert load(directory, environ={**environ, "PDCORE_TRANSFER_THREADS": "2"}).transfer_threads == 2
