"""The ``mooncake`` package, an extra: imported only when it is asked for, and with the traps of its interface covered.

It reads its settings from the environment, when it is first used. Return codes: 0 is success, everything else is not.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Final, Protocol, cast

from pdcore.engine.transfer.library import ByAddress, Opened
from pdcore.errors import ConfigError

PROTOCOLS: Final = ("tcp", "rdma", "ascend")
SHORTEST_TIMEOUT_S: Final = 5
_EXTRA: Final = {"tcp": "mooncake", "rdma": "mooncake", "ascend": "ascend"}


class Library(ByAddress, Protocol):
    """``mooncake.engine.TransferEngine`` as far as it is used."""

    def initialize(self, host: str, metadata: str, protocol: str, device: str) -> int: ...

    def get_rpc_port(self) -> int: ...


def load(protocol: str, timeout_s: int) -> Library:
    """An engine that is not initialized. ``ConfigError`` when the package cannot be imported, in one sentence."""
    settings = {"MC_TRANSFER_TIMEOUT": str(max(SHORTEST_TIMEOUT_S, timeout_s))}
    if protocol == "tcp":
        # Without the first it looks for RDMA devices; without the others a batch takes four times as long.
        settings |= {
            "MC_FORCE_TCP": "1",
            "MC_TCP_ENABLE_CONNECTION_POOL": "1",
            "MC_TCP_SLICE_SIZE": str(1 << 20),
        }
    if protocol == "ascend":
        settings["ASCEND_TRANSFER_TIMEOUT"] = str(1000 * max(SHORTEST_TIMEOUT_S, timeout_s))
    os.environ.update(settings)
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        module = importlib.import_module("mooncake.engine")
    except ImportError as error:
        raise ConfigError(_why(protocol, error)) from error
    return cast(Library, module.TransferEngine())


class Engine(Opened[Library]):
    """See :class:`pdcore.engine.transfer.library.MovesBytes`."""

    def __init__(
        self, host: str, protocol: str, device: str, timeout_s: int, load: Callable[[str, int], Library]
    ) -> None:
        super().__init__("mooncake")
        self._where = (host, protocol, device)
        self._load = load
        self._timeout_s = timeout_s

    def open(self) -> None:
        """Load and initialize; ``ConfigError`` when that fails."""
        host, protocol, device = self._where
        library = self._load(protocol, self._timeout_s)
        self.adopted(library)
        status = library.initialize(host, "P2PHANDSHAKE", protocol, device)
        if status != 0:
            raise ConfigError(
                f"mooncake cannot start with protocol {protocol} on {host}: it answered {status}"
            )

    def close(self) -> None:
        """Forget all memory; the library ends with its last reference."""
        self.given_up()

    @property
    def timeout_s(self) -> float:
        """What the library is told, and at least what it takes."""
        return float(max(SHORTEST_TIMEOUT_S, self._timeout_s))

    @property
    def session(self) -> str:
        """How peers call us; known only now."""
        return f"{self._where[0]}:{self.opened.get_rpc_port()}"


def _why(protocol: str, error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"--transfer-engine mooncake needs a package that is not here: pip install 'pdcore[{_EXTRA[protocol]}]'"
    if "libibverbs" in str(error):
        return "--transfer-engine mooncake needs libibverbs.so.1: apt-get install --no-install-recommends libibverbs1"
    return f"--transfer-engine mooncake cannot be loaded: {error}"
