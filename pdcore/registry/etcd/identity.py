"""Who we are to etcd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """``tls`` makes the connections encrypted (and may hold our certificate); ``user`` logs in with ``password``."""

    tls: grpc.ChannelCredentials | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)


NOBODY: Final = Identity()
