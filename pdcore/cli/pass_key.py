"""How a command shows a router that an operator asks, and by what it knows the router."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import httpx

from pdcore.bearer import Token
from pdcore.errors import ConfigError


class NamesPassKey(Protocol):
    """Settings that name one."""

    @property
    def admin_token_file(self) -> Path | None: ...

    @property
    def router_ca(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class PassKey:
    """The headers to send and the authorities to trust."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: ssl.SSLContext | bool = True

    @classmethod
    def of(cls, config: NamesPassKey) -> PassKey:
        """What the settings name; raises ConfigError for a file that cannot be used."""
        headers: dict[str, str] = {}
        verify: ssl.SSLContext | bool = True
        file: Path | None = None
        try:
            setting, file = "--admin-token-file / PDCORE_ADMIN_TOKEN_FILE", config.admin_token_file
            if config.admin_token_file is not None:
                token = Token.read(config.admin_token_file.read_text(encoding="utf-8"))
                headers |= token.headers()
            setting, file = "--router-ca / PDCORE_ROUTER_CA", config.router_ca
            if config.router_ca is not None:
                verify = ssl.create_default_context(cafile=config.router_ca)
        except (OSError, ValueError) as wrong:
            why = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else wrong
            raise ConfigError(f"{setting}: {file}: {why}") from None
        return cls(headers, verify)

    def client(self, timeout: httpx.Timeout | float) -> httpx.AsyncClient:
        """A client for routers only: what it sends goes nowhere else, also not where an answer points."""
        return httpx.AsyncClient(
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            headers=dict(self.headers),
            verify=self.verify,
        )


NO_KEY: Final = PassKey()
