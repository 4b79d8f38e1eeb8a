"""Encryption and admission of ZMQ sockets between the processes of one instance, by one shared secret.

The server's public key follows from the secret and is published nowhere, and a CURVE handshake begins with a box that
only that key can make: who does not know the secret is not heard.
"""

from __future__ import annotations

from typing import Final

import zmq

KEY_LENGTH: Final = 40


def listening(socket: zmq.Socket[bytes], secret: str | None) -> None:
    """Take only connections of those who know ``secret``; everybody's without one. Before ``bind``."""
    if secret is not None:
        socket.curve_secretkey = secret.encode()
        socket.curve_publickey = zmq.curve_public(secret.encode())
        socket.curve_server = True


def connecting(socket: zmq.Socket[bytes], secret: str | None) -> None:
    """Know ``secret``, and talk to nobody who does not. Before ``connect``."""
    if secret is not None:
        public = zmq.curve_public(secret.encode())
        socket.curve_secretkey = secret.encode()
        socket.curve_publickey = public
        socket.curve_serverkey = public
