"""A fingerprint changes with what two instances must share, and with nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pdcore.engine.model.fingerprint import fingerprint
from pdcore.errors import ConfigError
from tests.support.tiny_models import write_tiny_llama

pytestmark = pytest.mark.unit


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def edit(directory: Path, name: str, **changes: object) -> None:
    path = directory / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_copy_elsewhere_is_the_same_model(directory: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(directory, tmp_path / "elsewhere")
    edit(copy, "config.json", _name_or_path="/tmp/x", transformers_version="4.0", dtype="bfloat16")
    assert fingerprint(copy, "float32") == fingerprint(directory, "float32")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("config.json", {"rms_norm_eps": 1e-5}),
        ("config.json", {"rope_parameters": {"rope_theta": 1.0}}),
        ("tokenizer_config.json", {"chat_template": "other"}),
        ("tokenizer.json", {"model": {}}),
    ],
)
def test_config_tokenizer_and_template_count(directory: Path, name: str, changes: dict[str, object]) -> None:
    before = fingerprint(directory, "float32")
    edit(directory, name, **changes)
    assert fingerprint(directory, "float32") != before


def test_the_computing_dtype_counts(directory: Path) -> None:
    assert fingerprint(directory, "float32") != fingerprint(directory, "bfloat16")


def test_a_template_file_counts(directory: Path) -> None:
    before = fingerprint(directory, "float32")
    (directory / "chat_template.jinja").write_text("x")
    assert fingerprint(directory, "float32") != before


def test_a_missing_tokenizer_is_named(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        fingerprint(directory, "float32")
