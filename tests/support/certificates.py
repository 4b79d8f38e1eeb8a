"""Certificates for tests: an authority in a directory and what it signs, made by the ``openssl`` program."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

RUN_S: Final = 20.0
LOOPBACK: Final = ("IP:127.0.0.1", "DNS:localhost")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, both PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; whoever trusts :attr:`ca` trusts them."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory / name
        self._directory.mkdir(parents=True)
        self._own = self._make(name, "-addext", "basicConstraints=critical,CA:TRUE")

    @property
    def ca(self) -> Path:
        """The PEM file to trust."""
        return self._own.cert

    def issue(self, name: str, *alternatives: str) -> Certificate:
        """A certificate for ``name``, good as a server at ``alternatives`` (loopback unless given) and as a client."""
        return self._make(
            name,
            *("-CA", str(self._own.cert), "-CAkey", str(self._own.key)),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
            *("-addext", f"subjectAltName={','.join(alternatives or LOOPBACK)}"),
        )

    def _make(self, name: str, *options: str) -> Certificate:
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", f"/CN={name}", "-days", "2", "-keyout", str(made.key), "-out", str(made.cert)),
            *options,
        )
        return made


def openssl(*arguments: str) -> None:
    """Run the program. Without it the test is skipped, or fails where ``CI=true`` promises it."""
    program = shutil.which("openssl")
    if program is None:
        reason = "no openssl program on PATH (Debian: apt-get install openssl)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    subprocess.run([program, *arguments], capture_output=True, timeout=RUN_S, check=True)
