"""Reads source text and says which rules of the architecture it breaks. Pure, so that it can be tested itself."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

SHARED: Final = frozenset(
    {
        "errors",
        "config",
        "clock",
        "telemetry",
        "http_head",
        "http_rest",
        "http_server",
        "beside",
        "interruptible",
        "starting",
        "bearer",
        "watched_files",
        "interfaces",
    }
)
EVERYTHING: Final = frozenset({"topology", "registry", "router", "engine", "group", "cli"}) | SHARED
MAY_IMPORT: Final = {
    "topology": frozenset({"topology", "errors"}),
    "registry": frozenset({"registry", "topology"}) | SHARED,
    "router": frozenset({"router", "registry", "topology"}) | SHARED,
    "engine": frozenset({"engine", "registry", "topology"}) | SHARED,
    "group": frozenset({"group", "registry", "topology"}) | SHARED,
    "cli": EVERYTHING,
    "__main__": EVERYTHING,
    **dict.fromkeys(SHARED, SHARED),
}
"""The import table: what a module may import of pdcore, by the part of pdcore it lies in."""

IMPURE: Final = frozenset(
    "asyncio concurrent datetime logging multiprocessing os pathlib random secrets selectors shutil signal "
    "socket ssl subprocess tempfile threading time uuid warnings".split()
)
ENGINE_ONLY: Final = frozenset(
    "gguf jinja2 numpy safetensors tokenizers torch torch_npu transformers zmq".split()
)
UNSAFE_MODULES: Final = frozenset(
    {"pickle", "cPickle", "_pickle", "dill", "marshal", "cloudpickle", "shelve"}
)
UNSAFE_CALLS: Final = frozenset({"eval", "exec"})
UNSAFE_METHODS: Final = frozenset({"recv_pyobj", "send_pyobj", "recv_serialized", "send_serialized"})
DEVICE_KINDS: Final = frozenset({"npu", "cuda"})
DEVICE_NAMERS: Final = ("pdcore.engine.device", "pdcore.engine.model.attention", "pdcore.engine.transfer.")
WILDCARD: Final = ".".join("0000")
VAGUE_NAMES: Final = frozenset(
    {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers"}
)
MAX_MODULE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60


@dataclass(frozen=True)
class Import:
    """``target`` is the dotted name that is reached for, relative imports unresolved behind dots."""

    target: str
    line: int

    @property
    def top(self) -> str:
        return self.target.split(".")[0]

    @property
    def part(self) -> str:
        """The part of pdcore reached for; empty for the package itself and for other packages."""
        names = self.target.split(".")
        return names[1] if names[0] == "pdcore" and len(names) > 1 and not _is_dunder(names[1]) else ""


@dataclass(frozen=True)
class Module:
    """One file of the package: its dotted name and its text."""

    name: str
    text: str

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of its syntax tree."""
        return tuple(ast.walk(ast.parse(self.text)))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Everything it imports anywhere, in functions, under TYPE_CHECKING or by importlib too."""
        return tuple(found for node in self.nodes for found in _imported(node))

    @property
    def part(self) -> str:
        """The part of pdcore it belongs to; empty for the package itself."""
        return self.name.partition(".")[2].partition(".")[0]


def problems(name: str, text: str) -> list[str]:
    """Every broken rule in the module ``name`` with source ``text``, as ``module:line: sentence``."""
    module = Module(name, text)
    found = (problem for rule in RULES for problem in rule(module))
    return [f"{name}:{line}: {sentence}" for line, sentence in found]


Problems = Iterator[tuple[int, str]]


def check_layers(module: Module) -> Problems:
    """The import table; nobody imports ``cli`` but ``python -m pdcore``."""
    if module.part == "":
        return
    allowed = MAY_IMPORT.get(module.part)
    if allowed is None:
        yield 1, f"pdcore.{module.part} is not in the import table"
        return
    for reached in module.imports:
        if reached.part and reached.part not in allowed:
            yield reached.line, f"{module.part} may not import {reached.target}"


def check_absolute_imports(module: Module) -> Problems:
    """Imports are absolute."""
    for reached in module.imports:
        if reached.target.startswith("."):
            yield reached.line, f"the import of {reached.target} is relative"


def check_private_imports(module: Module) -> Problems:
    """What begins with an underscore stays within its part."""
    for reached in module.imports:
        names = reached.target.split(".")
        private = any(name.startswith("_") and not _is_dunder(name) for name in names)
        if reached.top == "pdcore" and private and reached.part != module.part:
            yield reached.line, f"{reached.target} is private to pdcore.{reached.part}"


def check_purity(module: Module) -> Problems:
    """``topology`` uses the standard library without its clocks, chances, environment and outside world."""
    if module.part != "topology":
        return
    for reached in module.imports:
        if reached.top != "pdcore" and reached.top not in sys.stdlib_module_names and reached.top:
            yield reached.line, f"topology may not import {reached.top}: it is not in the standard library"
        if reached.top in IMPURE:
            yield reached.line, f"topology may not import {reached.top}: it is not pure"
    for node in module.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "topology may not await"
        if isinstance(node, ast.Call) and _called(node) in {"open", "print", "input"}:
            yield node.lineno, f"topology may not call {_called(node)}"


def check_engine_libraries(module: Module) -> Problems:
    """Libraries of the ``engine`` extra are imported by the engine only: a router installs none of them."""
    for reached in module.imports:
        if reached.top in ENGINE_ONLY and module.part != "engine":
            yield reached.line, f"only the engine may import {reached.top}"


def check_safe_formats(module: Module) -> Problems:
    """Bytes from outside never become code."""
    for reached in module.imports:
        if reached.top in UNSAFE_MODULES:
            yield reached.line, f"{reached.top} runs what it reads"
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
            yield node.lineno, f"{node.func.id} runs what it is given"
        if isinstance(node, ast.Attribute) and node.attr in UNSAFE_METHODS:
            yield node.lineno, f"{node.attr} pickles"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            yield node.lineno, "torch.load unpickles"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield node.value.lineno, "allow_pickle unpickles"


def check_wildcards(module: Module) -> Problems:
    """No code listens on every interface by itself."""
    for node in module.nodes:
        if isinstance(node, ast.Constant):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and WILDCARD in text:
                yield node.lineno, f"{WILDCARD} is a wildcard address"


def check_devices(module: Module) -> Problems:
    """Kinds of devices are named where one is chosen, where attention differs, and where bytes move between them."""
    if module.part != "engine" or module.name.startswith(DEVICE_NAMERS):
        return
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.partition(":")[0] in DEVICE_KINDS:
                yield node.lineno, f"{node.value} names a device"
    for reached in module.imports:
        if reached.top == "torch_npu":
            yield reached.line, "torch_npu is a device's plug-in"


def check_names(module: Module) -> Problems:
    """A module is a noun of the domain."""
    for name in module.name.split("."):
        if name in VAGUE_NAMES:
            yield 1, f"{name} says nothing about what is in it"


def check_shape(module: Module) -> Problems:
    """Modules and functions can be read in one go."""
    if module.name.endswith("_pb2"):
        return
    lines = len(module.text.splitlines())
    if lines > MAX_MODULE_LINES:
        yield 1, f"{lines} lines, more than {MAX_MODULE_LINES}"
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"


RULES: Final[tuple[Callable[[Module], Problems], ...]] = (
    check_layers,
    check_absolute_imports,
    check_private_imports,
    check_purity,
    check_engine_libraries,
    check_safe_formats,
    check_wildcards,
    check_devices,
    check_names,
    check_shape,
)


def _imported(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        yield from (Import(f"{origin}.{alias.name}", node.lineno) for alias in node.names)
    elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"} and node.args:
        named = node.args[0]
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            yield Import(named.value, node.lineno)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
