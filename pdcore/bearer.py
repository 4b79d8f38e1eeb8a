"""``Authorization: Bearer``: a token that two parts of a deployment share, and how it is sent. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from pdcore.errors import ApiError

SHORTEST_TOKEN: Final = 16
_TOKEN: Final = re.compile(rf"[\x21-\x7e]{{{SHORTEST_TOKEN},4096}}")
_SCHEME: Final = b"bearer "


@dataclass(frozen=True, slots=True)
class Token:
    """One secret that two parts of a deployment share. Never shown."""

    secret: str = field(repr=False)

    @classmethod
    def read(cls, text: str) -> Self:
        """The only line of a file; raises ValueError."""
        secret = text.strip()
        if not _TOKEN.fullmatch(secret):
            raise ValueError(f"must hold one line of {SHORTEST_TOKEN} or more visible ASCII characters")
        return cls(secret)

    def is_sent(self, sent: bytes) -> bool:
        """Whether ``sent`` is it, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(hash_of(sent), hash_of(self.secret.encode("ascii")))

    def headers(self) -> dict[str, str]:
        """How it is sent."""
        return {"authorization": f"Bearer {self.secret}"}


def hash_of(secret: bytes) -> bytes:
    """What secrets are compared by."""
    return hashlib.sha256(secret).digest()


def credentials(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """What follows ``Authorization: Bearer`` in ``headers`` with lower-case names; 401 when that is not there once."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1 or given[0][: len(_SCHEME)].lower() != _SCHEME:
        raise ApiError("unauthorized", "this needs one header: Authorization: Bearer KEY")
    return given[0][len(_SCHEME) :].strip()
