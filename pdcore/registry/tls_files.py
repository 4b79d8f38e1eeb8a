"""The PEM files of a connection to a store, read and checked before anybody connects."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from pdcore.config import StoreAccess
from pdcore.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Whom to trust (``ca``), and who we are (``cert`` with its ``key``, or neither)."""

    ca: bytes
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


def read_tls_files(access: StoreAccess, setting: str) -> TlsFiles | None:
    """What the files of ``access`` hold; None when it names none, and the connection is not encrypted.

    ``setting`` begins the names of the flags that gave them. Raises :class:`ConfigError` naming flag and file.
    """
    ca, cert, key = (_Flag(setting, name) for name in ("ca", "cert", "key"))
    if access.cert is not None and access.key is None:
        raise ConfigError(f"{cert}: {access.cert} is of no use without its key: {key}")
    if access.key is not None and access.cert is None:
        raise ConfigError(f"{key}: {access.key} is of no use without its certificate: {cert}")
    if access.ca is None:
        if access.cert is not None:
            raise ConfigError(f"{cert}: {access.cert} is of no use without TLS: {ca}")
        return None
    files = TlsFiles(
        ca=ca.read(access.ca),
        cert=None if access.cert is None else cert.read(access.cert),
        key=None if access.key is None else key.read(access.key),
    )
    _check_certificates(ca, access.ca, files.ca)
    if access.cert is not None and access.key is not None and files.cert is not None:
        _check_certificates(cert, access.cert, files.cert)
        _check_key(key, access.cert, access.key)
    return files


@dataclass(frozen=True, slots=True)
class _Flag:
    setting: str
    name: str

    def __str__(self) -> str:
        return f"--{self.setting}-{self.name} / PDCORE_{self.setting.upper()}_{self.name.upper()}"

    def read(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{self}: cannot read {path}: {error.strerror or error}") from error


def _check_certificates(flag: _Flag, path: str, pem: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{flag}: {path} holds no certificate in PEM form") from error


def _check_key(flag: _Flag, cert: str, key: str) -> None:
    try:
        # A key under a passphrase must not stop the process at a terminal's prompt.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{flag}: {key} is not the key of {cert}") from error
        raise ConfigError(f"{flag}: {key} holds no key in PEM form without a passphrase") from error
