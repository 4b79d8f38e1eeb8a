"""The ports of a router: one for clients, one that engines call, and if it is wanted one for operators."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from pdcore.config import RouterConfig
from pdcore.http_server import answering, listen, url_of
from pdcore.router.callbacks import listening
from pdcore.router.contacts import Contacts
from pdcore.router.credentials import Credentials
from pdcore.router.learned import Learned
from pdcore.telemetry import logger

_log = logger(__name__)


@asynccontextmanager
async def operators_door(
    config: RouterConfig, credentials: Credentials, app: ASGIApp
) -> AsyncIterator[str | None]:
    """Answer operators with ``app`` at a port of their own inside the block; yields its URL, None without a port."""
    if config.admin_port is None:
        yield None
        return
    with listen(config.host, config.admin_port, "admin_port") as listener:
        url = url_of(config.host, listener, tls=credentials.tls is not None)
        async with answering(app, listener, credentials.tls):
            _log.info("router shows itself to operators", url=url)
            yield url


@asynccontextmanager
async def engines_door(config: RouterConfig) -> AsyncIterator[Contacts]:
    """Contacts with engines inside the block: a client, and a listener on ``config.metaserver_port`` for their calls.

    Raises ConfigError when that port is taken.
    """
    with listen(config.host, config.metaserver_port, "metaserver_port") as listener:
        async with (
            Learned(timeout_s=config.connect_timeout_s) as learned,
            listening(config.host, listener) as callbacks,
        ):
            yield Contacts(learned=learned, callbacks=callbacks)


def warn_of_open_doors(config: RouterConfig, credentials: Credentials) -> None:
    """Say what whoever reaches this router may do, where that may be more than this machine."""
    if is_loopback(config.host):
        return
    if config.api_keys_file is None:
        _log.warning("whoever reaches this port is served", host=config.host, setting="--api-keys-file")
    if credentials.tls is None:
        _log.warning("requests and keys cross the network readable", host=config.host, setting="--tls-cert")
    if config.admin_token_file is None and (config.api_keys_file is None or config.admin_port is not None):
        _log.warning("whoever reaches the views may use them", host=config.host, setting="--admin-token-file")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
