"""Hold the code to its size, so that growth is noticed while splitting is still easy.

A module or a function past its limit fails the check. A class with many public methods or constructor parameters is
only pointed out: sometimes that is what a seam looks like.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MODULE_LINES: Final = 400
FUNCTION_LINES: Final = 60
PUBLIC_METHODS: Final = 12
CONSTRUCTOR_PARAMETERS: Final = 7
VAGUE_NAMES: Final = frozenset({"utils", "common", "helpers", "misc", "manager"})
LONG_MODULES: Final = {
    "pdcore/config.py": "tables of settings, one entry each",
}
"""Modules that may be longer, each with its reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    modules = [(path, path.read_text(encoding="utf-8")) for path in sorted(Path("pdcore").rglob("*.py"))]
    written = [(path, source) for path, source in modules if not path.stem.endswith("_pb2")]
    for path, source in written:
        for hint in hints(path, source):
            print(f"look: {hint}")
    complaints = [complaint for path, source in written for complaint in too_long(path, source)]
    print("\n".join(complaints) or f"shape: {len(written)} modules within their limits")
    return 1 if complaints else 0


def too_long(path: Path, source: str) -> Iterator[str]:
    """Every limit that the module at ``path`` breaks, one line each."""
    lines = source.count("\n")
    if path.stem in VAGUE_NAMES:
        yield f"{path}: the name says nothing about what is inside"
    if lines > MODULE_LINES and path.as_posix() not in LONG_MODULES:
        yield f"{path}: {lines} lines, at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(source)):
        size = (node.end_lineno or node.lineno) - node.lineno + 1 if isinstance(node, Function) else 0
        if isinstance(node, Function) and size > FUNCTION_LINES:
            yield f"{path}:{node.lineno}: {node.name} has {size} lines, at most {FUNCTION_LINES}"


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
