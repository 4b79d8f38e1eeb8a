"""The secrets of a router's process, from the files that its settings name."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pdcore.bearer import Token
from pdcore.config.router_security import SecurityConfig
from pdcore.errors import ConfigError
from pdcore.router.access import Access
from pdcore.router.api_keys import ApiKeys
from pdcore.watched_files import WatchedFiles

T = TypeVar("T")
_Parse = Callable[[str], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What is read, and what follows: who may ask for what, and the server's certificate if there is one.

    ``engine_tls`` is by what engines at https addresses are known; the machine's trust if None.
    """

    access: Access
    tls: ssl.SSLContext | None
    engine_tls: ssl.SSLContext | None
    files: tuple[WatchedFiles[object], ...]

    def unread(self) -> int:
        """How many files changed and could not be read again."""
        return sum(one.error is not None for one in self.files)


def read_credentials(config: SecurityConfig) -> Credentials:
    """Read every file that ``config`` names; raises ConfigError with everything that is wrong."""
    keys = _watched(config.api_keys_file, ApiKeys.read, "--api-keys-file / PDCORE_API_KEYS_FILE")
    admin = _watched(config.admin_token_file, Token.read, "--admin-token-file / PDCORE_ADMIN_TOKEN_FILE")
    engine = _watched(config.engine_token_file, Token.read, "--engine-token-file / PDCORE_ENGINE_TOKEN_FILE")
    tls = _certificate(config)
    every: tuple[WatchedFiles[object] | None, ...] = (keys, admin, engine, tls)
    files = tuple(one for one in every if one is not None)
    _load(files)
    return Credentials(
        access=Access(
            keys=_value(keys),
            admin_token=_value(admin),
            engine_token=_value(engine),
            apart=config.admin_port is not None,
        ),
        tls=None if tls is None else tls.value,
        engine_tls=_trust(config.engine_ca),
        files=files,
    )


def _trust(ca: Path | None) -> ssl.SSLContext | None:
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as wrong:
        why = "holds no certificate" if isinstance(wrong, ssl.SSLError) else wrong.strerror
        raise ConfigError(f"--engine-ca / PDCORE_ENGINE_CA: {ca}: {why}") from None


def _load(files: tuple[WatchedFiles[object], ...]) -> None:
    problems: list[str] = []
    for one in files:
        try:
            one.load()
        except ConfigError as wrong:
            problems += wrong.problems
    if problems:
        raise ConfigError(*problems)


def _watched(path: Path | None, parse: _Parse[T], setting: str) -> WatchedFiles[T] | None:
    if path is None:
        return None
    return WatchedFiles((path,), lambda: parse(path.read_text(encoding="utf-8")), setting)


def _value(watched: WatchedFiles[T] | None) -> Callable[[], T | None]:
    return lambda: None if watched is None else watched.value


def _certificate(config: SecurityConfig) -> WatchedFiles[ssl.SSLContext] | None:
    """One context for the life of the process, into which a renewed certificate is loaded."""
    cert, key = config.tls_cert, config.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert / PDCORE_TLS_CERT and --tls-key / PDCORE_TLS_KEY are given together")
    context = _server_context()
    return WatchedFiles((cert, key), partial(_renewed, context, cert, key), "--tls-cert, --tls-key")


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _renewed(context: ssl.SSLContext, cert: Path, key: Path) -> ssl.SSLContext:
    """``context`` with the pair from the files; one that does not fit leaves it as it was."""
    try:
        _server_context().load_cert_chain(cert, key, password=_no_password)
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as wrong:
        raise ValueError(f"no certificate with its key: {wrong.reason or 'unreadable PEM'}") from None
    return context


def _no_password() -> str:
    """Asked for when the key is encrypted; without it OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; give one that is not")
