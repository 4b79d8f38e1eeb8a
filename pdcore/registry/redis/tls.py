"""TLS to Redis. Imported only where redis-py is there and TLS is spoken."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from redis.asyncio import SSLConnection
from redis.exceptions import AuthenticationError, ConnectionError

ALERT_S: Final = 1.0


class ExplainingConnection(SSLConnection):
    """Says why a server closed a connection at once.

    With TLS 1.3 a server judges our certificate when our first command is already on its way, and closing then loses
    the alert that tells why; some event loops lose it too. So it is asked again by somebody who only listens.
    """

    async def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """Connect and greet the server."""
        try:
            await super().connect_check_health(check_health, retry_socket_connect)
        except AuthenticationError:
            raise
        except ConnectionError as error:
            alert = await asyncio.to_thread(read_alert, self.host, int(self.port), self.ssl_context.get())
            if alert is None:
                raise
            raise ConnectionError(alert) from error


def read_alert(host: str, port: int, context: ssl.SSLContext) -> str | None:
    """What the server has against us in the TLS handshake; None when nothing within ``ALERT_S``."""
    try:
        with (
            socket.create_connection((host, port), ALERT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            encrypted.recv(1)
    except ssl.SSLError as error:
        return str(error)
    except OSError:
        return None
    return None
