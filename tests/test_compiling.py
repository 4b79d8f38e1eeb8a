"""What is compiled on request: modules that are there, and none of a kind that behaves differently when it is."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
HOOK = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
COMPILED = [PROJECT / name.removeprefix("/") for name in HOOK["include"]]


def raised_classes(module: ast.Module) -> list[str]:
    """Classes that are exceptions, by the names of what they are made from."""
    classes = [one for one in ast.walk(module) if isinstance(one, ast.ClassDef)]
    return [
        one.name
        for one in classes
        if any(ast.unparse(base).endswith(("Error", "Exception", "Broken", "Failure")) for base in one.bases)
    ]


def decoded_classes(module: ast.Module) -> list[str]:
    """Classes of the module that say to msgspec how a document looks."""
    own = {one.name for one in ast.walk(module) if isinstance(one, ast.ClassDef)}
    decoders = [
        call
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Decoder")
    ]
    named = {name.id for call in decoders for name in ast.walk(call) if isinstance(name, ast.Name)}
    return sorted(own & named)


def async_blocks(module: ast.Module) -> list[int]:
    """Lines of ``async with`` and ``async for``: a cancellation that meets one is lost, or ends the process."""
    return [one.lineno for one in ast.walk(module) if isinstance(one, ast.AsyncWith | ast.AsyncFor)]


def test_nothing_is_compiled_unless_it_is_asked_for() -> None:
    assert HOOK["enable-by-default"] is False


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_what_is_compiled_means_the_same_as_it_does_in_python(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    assert raised_classes(module) == []
    assert decoded_classes(module) == []
    assert async_blocks(module) == []


def test_the_kinds_that_are_not_compiled_are_seen() -> None:
    router = PROJECT / "pdcore/router"
    assert len(async_blocks(ast.parse((router / "polling.py").read_text(encoding="utf-8")))) == 1
    assert raised_classes(ast.parse((router / "leg_failure.py").read_text(encoding="utf-8"))) == [
        "LegFailure"
    ]
    assert decoded_classes(ast.parse((router / "endings.py").read_text(encoding="utf-8"))) == [
        "Said",
        "_More",
        "_Whole",
    ]
