"""The ``memfabric_hybrid`` package, part of an extra: imported only when it is asked for. Two interfaces by version.

Measured: before 1.2 every process connects to one store, which somebody keeps running, and ``get_rpc_port`` is a text
that is another one at every call; a session is named before it begins. From 1.2 on each decode rank keeps a store of its
own at its session's address, and ``get_rpc_port`` says 0 until then. Codes of failure may be positive, and
``register_memory`` says 0 even where ``initialize`` has failed, so that its answer proves nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from pdcore.engine.transfer.library import ByAddress, Opened
from pdcore.errors import ConfigError

PACKAGE: Final = "memfabric_hybrid"
PROTOCOLS: Final = ("sdma", "device_rdma")
TIMEOUT_S: Final = 30.0
"""After so long nothing of a peer that ended is taken to be on its way. Nothing tells the library how long a transfer may
take, so this is on the safe side of what links between devices retry; it was not measured."""
OWN_STORES_SINCE: Final = (1, 2)

Side = Literal["Prefill", "Decode"]


class Library(ByAddress, Protocol):
    """``memfabric_hybrid.TransferEngine`` as far as it is used."""

    def initialize(self, store_url: str, session: str, role: str, device: int, operation: Any, /) -> int: ...

    def get_rpc_port(self) -> int | str: ...

    def unInitialize(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Package:
    """The package as it was found: its version, how to make an engine, its names for protocols, its last words."""

    version: tuple[int, ...]
    engine: Callable[[], Library]
    operation: Callable[[str], Any]
    last_words: Callable[[], str]

    @property
    def has_own_stores(self) -> bool:
        """Whether decode ranks keep stores of their own, so that none has to be kept for them."""
        return self.version >= OWN_STORES_SINCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to initialize: ``store`` is the URL of the one store (before 1.2), ``device`` this rank's number."""

    host: str
    protocol: str
    store: str | None
    device: int


def load() -> Package:
    """``ConfigError`` when the package cannot be imported, in one sentence."""
    try:
        module = importlib.import_module(PACKAGE)
        version = importlib.metadata.version(PACKAGE)
    except (ImportError, OSError) as error:
        raise ConfigError(_why(error)) from error
    operations = module.TransferEngine.TransDataOpType
    return Package(
        version=parse_version(version),
        engine=module.TransferEngine,
        operation=lambda name: getattr(operations, name.upper()),
        last_words=lambda: str(module.get_last_err_msg() or ""),
    )


def parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


class Engine(Opened[Library]):
    """See :class:`pdcore.engine.transfer.library.MovesBytes`. ``side`` is what this rank is to the library.

    Mutable: ``_session`` (None until open).
    """

    def __init__(
        self, side: Side, terms: Terms, load: Callable[[], Package] = load, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__("memfabric")
        self.timeout_s = timeout_s
        self._side = side
        self._terms = terms
        self._load = load
        self._session: str | None = None

    def open(self) -> None:
        """Load and initialize; ``ConfigError`` when that fails."""
        package, terms = self._load(), self._terms
        library = package.engine()
        session, store = _names(package, library, terms)
        status = library.initialize(
            store, session, self._side, terms.device, package.operation(terms.protocol)
        )
        if status != 0:
            said = package.last_words().strip()
            raise ConfigError(
                f"memfabric cannot start with protocol {terms.protocol} on device {terms.device} (session {session}, "
                f"store {store}): it answered {status}{': ' + said if said else ''}; `pdcore doctor ascend` looks for why"
            )
        self.adopted(library)
        self._session = session

    def close(self) -> None:
        """Forget all memory and end."""
        library = self.given_up()
        if library is not None:
            library.unInitialize()

    @property
    def session(self) -> str:
        """How peers call us."""
        if self._session is None:
            raise RuntimeError("the engine is not open")
        return self._session


def _names(package: Package, library: Library, terms: Terms) -> tuple[str, str]:
    """This process's session and its store's URL; ``ConfigError`` where a store is needed and not named."""
    if ":" in terms.host:
        raise ConfigError(f"memfabric knows numeric IPv4 addresses only, and this rank's is {terms.host}")
    if package.has_own_stores:
        session = f"{terms.host}:{_free_port(terms.host)}"
        return session, f"tcp://{session}"
    if terms.store is None:
        version = ".".join(map(str, package.version))
        raise ConfigError(
            f"--memfabric-store / PDCORE_MEMFABRIC_STORE: memfabric {version} needs a store that all ranks reach; keep "
            "one running with `python -m pdcore.engine.memfabric_store`, or install memfabric_hybrid>=1.2"
        )
    return f"{terms.host}:{library.get_rpc_port()}", terms.store


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _why(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "--transfer-engine memfabric needs a package that is not here: pip install 'pdcore[ascend]'"
    return f"--transfer-engine memfabric cannot be loaded: {error}"
