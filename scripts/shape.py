"""The structure of the package at a glance: every broken rule fails, and classes that may want splitting are named.

The rules are those of ``tests/support/layers.py``. A class with many public methods or constructor parameters is only
pointed out: sometimes that is what a seam looks like.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.layers import problems

PUBLIC_METHODS: Final = 12
CONSTRUCTOR_PARAMETERS: Final = 7

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Print hints, then problems; 1 if there is a problem."""
    modules = {path: path.read_text(encoding="utf-8") for path in sorted(Path("pdcore").rglob("*.py"))}
    for path, source in modules.items():
        for hint in hints(path, source):
            print(f"look: {hint}")
    broken = [problem for path, source in modules.items() for problem in problems(dotted(path), source)]
    print("\n".join(broken) or f"shape: {len(modules)} modules keep the rules")
    return 1 if broken else 0


def dotted(path: Path) -> str:
    """``pdcore/a/b.py`` as ``pdcore.a.b``, a package by its own name."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def hints(path: Path, source: str) -> Iterator[str]:
    """Classes that may want splitting."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield from _class_hints(f"{path}:{node.lineno}: {node.name}", node)


def _class_hints(where: str, node: ast.ClassDef) -> Iterator[str]:
    methods = [item for item in node.body if isinstance(item, Function)]
    public = [method for method in methods if not method.name.startswith("_") and not method.decorator_list]
    if len(public) > PUBLIC_METHODS:
        yield f"{where} has {len(public)} public methods ({PUBLIC_METHODS} is plenty)"
    for method in methods:
        parameters = len(method.args.args) + len(method.args.kwonlyargs) - 1
        if method.name == "__init__" and parameters > CONSTRUCTOR_PARAMETERS:
            yield f"{where} takes {parameters} parameters ({CONSTRUCTOR_PARAMETERS} is plenty)"


if __name__ == "__main__":
    sys.exit(main())
