"""What an installation brings along: routers get no tensor library, and only one extra can break its import."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.layers import ENGINE_ONLY

pytestmark = pytest.mark.unit

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    """Normalised package names."""
    found = [re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements]
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in found if name is not None}


def test_a_router_installs_none_of_the_engines_libraries() -> None:
    assert {"torch", "numpy", "tokenizers"} <= names(EXTRAS["engine"])
    assert not names(PROJECT["dependencies"]) & (names(EXTRAS["engine"]) | set(ENGINE_ONLY))


def test_the_plug_in_that_breaks_torch_without_its_driver_is_in_one_extra_only() -> None:
    having = {extra for extra, requirements in EXTRAS.items() if "torch-npu" in names(requirements)}
    assert having == {"ascend"}


def test_only_one_build_of_mooncake_is_in_any_extra_and_both_in_none() -> None:
    builds = {
        extra: {name for name in names(requirements) if name.startswith("mooncake")}
        for extra, requirements in EXTRAS.items()
    }
    assert {extra: len(found) for extra, found in builds.items() if found} == {"mooncake": 1, "ascend": 1}
    assert not any(extra in " ".join(EXTRAS["engine"]) for extra in ("mooncake", "ascend", "memfabric"))
