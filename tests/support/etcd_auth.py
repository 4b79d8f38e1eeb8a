"""What an operator does to an etcd that is to ask for users."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.certificates import openssl
from tests.support.etcd_server import EtcdServer

ROOT: Final = "root:the-root-password"
USER: Final = "fleet"
PASSWORD: Final = "hunter2"


def add_user(server: EtcdServer, prefix: str) -> None:
    """A root, and ``USER``, who may do everything below ``prefix`` and nothing else. Auth stays off."""
    for command in (
        ("user", "add", ROOT),
        ("user", "grant-role", "root", "root"),
        ("role", "add", USER),
        ("role", "grant-permission", USER, "--prefix=true", "readwrite", prefix),
        ("user", "add", f"{USER}:{PASSWORD}"),
        ("user", "grant-role", USER, USER),
    ):
        server.etcdctl(*command)


def switch_on(server: EtcdServer) -> None:
    """From now on it asks for users."""
    server.etcdctl("auth", "enable")


def as_root(server: EtcdServer, *arguments: str) -> str:
    """``etcdctl`` on a server that asks for users."""
    return server.etcdctl("--user", ROOT, *arguments)


def switch_off(server: EtcdServer) -> None:
    """From now on it asks nobody, and refuses tokens."""
    as_root(server, "auth", "disable")


def change_password(server: EtcdServer, password: str) -> None:
    """Another one for ``USER``; tokens of theirs end."""
    as_root(server, "user", "delete", USER)
    as_root(server, "user", "add", f"{USER}:{password}")
    as_root(server, "user", "grant-role", USER, USER)


def signed_tokens(directory: Path, ttl: str = "5m") -> tuple[str, ...]:
    """Flags for tokens that say which revision of the users they were made for (JWT)."""
    private, public = directory / "jwt.key", directory / "jwt.pub"
    openssl("genrsa", "-out", str(private), "1024")
    openssl("rsa", "-in", str(private), "-pubout", "-out", str(public))
    return ("--auth-token", f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl={ttl}")
